#!lua flags=allow-oom
-- Drop consumed messages; seal a queue that is empty after that, or open it again.
-- KEYS  1 hash head, 2 hash fence, 3 set sealed, then a list for each trim
-- ARGV  for each trim: queue, group, upto (first offset to keep), epoch (-1: not fenced), seal (1 yes, 0 open, - leave)
-- Returns for each trim 1 (sealed now), 0 (open), -1 (stale epoch). Allowed on a full server. O(dropped).
local answer = {}
for t = 1, #KEYS - 3 do
  local a = (t - 1) * 5
  local queue, group, upto, epoch, seal = ARGV[a + 1], ARGV[a + 2], tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4]), ARGV[a + 5]
  if epoch >= 0 and tonumber(redis.call('HGET', KEYS[2], group) or -1) > epoch then
    answer[t] = -1
  else
    local list = KEYS[t + 3]
    local head, length = tonumber(redis.call('HGET', KEYS[1], queue) or 1), redis.call('LLEN', list)
    local dropped = math.min(upto - head, length)
    if dropped > 0 then
      redis.call('LTRIM', list, dropped, -1)
      redis.call('HSET', KEYS[1], queue, string.format('%.0f', head + dropped))
      length = length - dropped
    end
    if seal == '1' and length == 0 then redis.call('SADD', KEYS[3], queue) end
    if seal == '0' then redis.call('SREM', KEYS[3], queue) end
    answer[t] = redis.call('SISMEMBER', KEYS[3], queue)
  end
end
return answer
