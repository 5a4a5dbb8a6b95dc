-- What becomes of two payloads with the same merge key. Both are strings, and so is what is returned.
-- Here they are temperatures as "lowest..highest" (or one alone), and the wider range is kept.
local older, newer = ...

local function range(text)
  local low, high = string.match(text, '^(.-)%.%.(.+)$')
  return tonumber(low or text), tonumber(high or text)
end

local low, high = range(older)
local next_low, next_high = range(newer)
return string.format('%g..%g', math.min(low, next_low), math.max(high, next_high))
