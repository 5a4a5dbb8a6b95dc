-- Part of many scripts: reads the whole numbers of EMQ's hashes. Another program may have written over them.

-- Return the number that a field holds, `otherwise` for a missing field, or nil for a value that EMQ never writes.
local function whole(text, otherwise)
  local n = tonumber(text or otherwise)
  if n and n > -9007199254740992 and n < 9007199254740992 and n == math.floor(n) then return n end
end

-- Return an epoch or layout. A damaged one counts as missing, until the next owner writes its own.
local function highest(text, otherwise) return whole(text, otherwise) or otherwise end

-- Return the offset of a list's first element, false or nil if it is damaged; then the queue's incarnation, '' if none.
local function head_of(text)
  local offset, incarnation = string.match(text or '1', '^(%S+) ?(%d*)$')
  local n = offset and whole(offset, 1)
  return n and n >= 1 and n, incarnation or ''
end

-- Return the field that says this.
local function as_head(offset, incarnation)
  local text = string.format('%.0f', offset)
  return incarnation == '' and text or text .. ' ' .. incarnation
end
