#!lua flags=allow-oom
-- Forget groups of topics that are gone: queues and lanes, each group if all of it is sealed and empty, and if its epoch
-- is the caller's mark. If the epoch is another one, write the mark there: whoever comes to own the group replaces it.
-- KEYS  1 hash head, 2 hash armed, 3 hash lane_armed, 4 hash fence, 5 set sealed, 6 hash layout, 7 zset woken; then for
--       each group the list of each queue; then its zset waiting, hash prepared, zset dead, and the rest of the lane:
--       zset ranks, hash bodies, hash reasons, zset named, zset taken, hash taken_ms, zset ids
-- ARGV  for each group: group, mark (below 0), whether to forget it (1), or to write the mark at most (0), number of
--       queues, queues ...
-- Returns for each group 0 if the group stays, else a list: 1, and the tail of each queue. O(groups + woken).
-- include whole
local OF_LANE = 10
local answer, forgotten, k, a = {}, {}, 8, 1

local function forget(group, lane, names)
  for _, name in ipairs(names) do
    redis.call('HDEL', KEYS[1], name)
    redis.call('HDEL', KEYS[2], name)
    redis.call('HDEL', KEYS[6], name)
  end
  redis.call('HDEL', KEYS[3], group)
  redis.call('DEL', unpack(KEYS, lane, lane + OF_LANE - 1))
  names[#names + 1] = group
  for _, name in ipairs(names) do forgotten[name] = true end
  redis.call('SREM', KEYS[5], unpack(names))
  redis.call('HDEL', KEYS[4], group)
end

while a <= #ARGV do
  local group, mark, n = ARGV[a], ARGV[a + 1], tonumber(ARGV[a + 3])
  local lane, names, tails = k + n, {}, {1}
  local idle = redis.call('SISMEMBER', KEYS[5], group) == 1 and redis.call('EXISTS', unpack(KEYS, lane, lane + 2)) == 0
  for i = 1, n do
    names[i] = ARGV[a + 3 + i]
    tails[i + 1] = head_of(redis.call('HGET', KEYS[1], names[i]))
    idle = idle and tails[i + 1] and redis.call('SISMEMBER', KEYS[5], names[i]) == 1
      and redis.call('LLEN', KEYS[k + i - 1]) == 0
  end
  answer[#answer + 1] = 0
  if idle and redis.call('HGET', KEYS[4], group) == mark then
    if ARGV[a + 2] == '1' then
      forget(group, lane, names)
      answer[#answer] = tails
    end
  elseif idle then
    redis.call('HSET', KEYS[4], group, mark)
  end
  k, a = lane + OF_LANE, a + 4 + n
end
-- Few names are woken and not read yet. To try each name with the channel of each host would take much longer.
for _, woken in ipairs(next(forgotten) and redis.call('ZRANGE', KEYS[7], 0, -1) or {}) do
  if forgotten[string.match(woken, '\n(.*)$')] then redis.call('ZREM', KEYS[7], woken) end
end
return answer
