-- Part of lane_dead and slot_dead: the walk through the dead.
local FIRST_PIECE, PIECE = 16, 128 -- members looked at in one call, however large they turn out to be

-- Call `found(member, time of death in ms)` for at most `limit` dead behind (after_ms, after), while it returns true.
local function each_dead(dead, after_ms, after, limit, found)
  local function ms_of(score) return math.max(0, math.min(math.floor(tonumber(score)), 9007199254740991)) end
  local place, size = redis.call('ZRANK', dead, after), FIRST_PIECE
  if place and ms_of(redis.call('ZSCORE', dead, after)) == after_ms then
    place, after_ms = place + 1, -1
  else -- it is gone: from the first one of its millisecond; a stranger may have written any score
    place = after_ms > 0 and redis.call('ZCOUNT', dead, '-inf', '(' .. string.format('%.0f', after_ms)) or 0
  end
  while limit > 0 do
    local page = redis.call('ZRANGE', dead, place, place + size - 1, 'WITHSCORES')
    for i = 1, #page, 2 do
      local ms = ms_of(page[i + 1])
      if limit > 0 and (ms > after_ms or ms == after_ms and page[i] > after) then
        limit = limit - 1
        if not found(page[i], ms) then return end
      end
    end
    if #page < size * 2 then return end
    place, size = place + size, PIECE
  end
end
