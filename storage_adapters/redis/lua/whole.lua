-- Part of many scripts: reads the whole numbers of EMQ's hashes. Another program may have written over them.

-- Return the number that a field holds, `otherwise` for a missing field, or nil for a value that EMQ never writes.
local function whole(text, otherwise)
  local n = tonumber(text or otherwise)
  if n and n > -9007199254740992 and n < 9007199254740992 and n == math.floor(n) then return n end
end

-- Return an epoch or layout. A damaged one counts as missing, until the next owner writes its own.
local function highest(text, otherwise) return whole(text, otherwise) or otherwise end

-- Return the offset of a list's first element; false or nil if it is damaged.
local function head_of(text)
  local n = whole(text, 1)
  return n and n >= 1 and n
end
