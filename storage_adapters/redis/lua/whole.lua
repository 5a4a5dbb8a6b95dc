-- Part of many scripts: the whole numbers of EMQ's hashes, which somebody else may have written over.

-- The number that a field holds, `otherwise` for a field that is not there; nil for what EMQ never wrote.
local function whole(text, otherwise)
  local n = tonumber(text or otherwise)
  if n and n > -9007199254740992 and n < 9007199254740992 and n == math.floor(n) then return n end
end

-- An epoch or layout. A damaged one counts as not there, until the next owner writes its own.
local function highest(text, otherwise) return whole(text, otherwise) or otherwise end

-- The offset of a list's first element.
local function head_of(text)
  local n = whole(text, 1)
  return n and n >= 1 and n
end
