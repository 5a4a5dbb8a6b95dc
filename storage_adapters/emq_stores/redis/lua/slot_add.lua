#!lua
-- Add members that are their own bodies to slots; wake armed slots.
-- KEYS  for each slot: zset store, zset prepare, hash own, hash retries
-- ARGV  for each slot: address, highest first (0/1), the score that a waiting member keeps ("NX" the first, "" the
--       last, "LT" the lowest, "GT" the highest), most that may wait (-1: any number), number of members; then score
--       and member of each
-- Returns for each slot its number of members if all were new, else a string with a mark for each: 1 new, 0 merged,
--       2 no room, 4 the slot is sealed. Refuses the whole call when memory is full (OOM). O(members log waiting).
-- include slot_waking

-- Give new members all their retries: forget the retries of an earlier equal one that another program acknowledged.
local function forget_retries(retries, prepare, members, found)
  for i = 1, #members do
    if not found[i] and not redis.call('ZSCORE', prepare, members[i]) then redis.call('HDEL', retries, members[i]) end
  end
end

local answer, k, a = {}, 1, 1
while a <= #ARGV do
  local store, keep, most, n = KEYS[k], ARGV[a + 2], tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4])
  local room = most < 0 and n or most - redis.call('ZCARD', store)
  local sealed = redis.call('HEXISTS', KEYS[k + 2], 'sealed') == 1
  local step = room >= n and 1000 or 2 -- where room may run out, one by one
  local marks, fresh, noted = {}, 0, redis.call('EXISTS', KEYS[k + 3]) == 1
  for first = a + 5, sealed and 0 or a + 4 + 2 * n, step do
    local last = math.min(first + step, a + 5 + 2 * n) - 1
    local members, unknown = {}, 0
    for i = first + 1, last, 2 do members[#members + 1] = ARGV[i] end
    local found = redis.call('ZMSCORE', store, unpack(members))
    if noted then forget_retries(KEYS[k + 3], KEYS[k + 1], members, found) end
    if room <= 0 and not found[1] and step == 2 then
      marks[#marks + 1] = 2
    else
      local added
      if keep == '' then
        added = redis.call('ZADD', store, unpack(ARGV, first, last))
      else
        added = redis.call('ZADD', store, keep, unpack(ARGV, first, last))
      end
      room, fresh = room - added, fresh + added
      for i = 1, #members do
        if not found[i] then unknown = unknown + 1 end
      end
      local seen = added < unknown and {} -- the same member more than once
      for i = 1, #members do
        marks[#marks + 1] = (found[i] or seen and seen[members[i]]) and 0 or 1
        if seen then seen[members[i]] = true end
      end
    end
  end
  answer[#answer + 1] = sealed and string.rep('4', n) or fresh == n and n or table.concat(marks)
  wake(ARGV[a], store, KEYS[k + 1], KEYS[k + 2], ARGV[a + 1] == '1')
  k, a = k + 4, a + 5 + 2 * n
end
publish()
return answer
