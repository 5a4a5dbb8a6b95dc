#!lua flags=allow-oom
-- Drop consumed messages. Seal a queue that is empty after that, or open it again.
-- KEYS  1 hash head, 2 hash fence, 3 set sealed, 4 hash layout, then a list for each trim, then the
--       zset ids of the group for each trim that seals
-- ARGV  for each trim: queue, group, upto (first offset to keep), epoch (-1: not fenced), seal (1 seal, 0 open,
--       - leave), layout (refuse keyed puts of lower ones; 0: leave), offset and digest of a message that the owner has
--       seen ("" for none)
-- Returns for each trim 1 (sealed now), 0 (open), 2 (head damaged), -1 (stale epoch), -1 - tail (the message that the
--       owner has seen is gone). Allowed on a full server. O(dropped).
-- include mark
-- include whole
local answer, sealing = {}, 0
for t = 1, #ARGV / 8 do
  local a = (t - 1) * 8
  local queue, group, upto, epoch, seal = ARGV[a + 1], ARGV[a + 2], tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4]), ARGV[a + 5]
  if epoch >= 0 and highest(redis.call('HGET', KEYS[2], group), -1) > epoch then
    answer[t] = -1
  elseif not (head_of(redis.call('HGET', KEYS[1], queue))) then
    answer[t] = 2
  else
    local list, layout = KEYS[t + 4], tonumber(ARGV[a + 6])
    local head, incarnation = head_of(redis.call('HGET', KEYS[1], queue))
    local length = redis.call('LLEN', list)
    local lost = lacks(list, head, ARGV[a + 7], ARGV[a + 8])
    local dropped = lost and 0 or math.min(upto - head, length)
    if dropped > 0 then
      redis.call('LTRIM', list, dropped, -1)
      redis.call('HSET', KEYS[1], queue, as_head(head + dropped, incarnation))
      length = length - dropped
    end
    if seal == '1' and length == 0 and not lost then
      redis.call('SADD', KEYS[3], queue)
      redis.call('DEL', KEYS[4 + #ARGV / 8 + sealing + 1])
    end
    if seal == '0' then redis.call('SREM', KEYS[3], queue) end
    if layout > highest(redis.call('HGET', KEYS[4], queue), 0) then redis.call('HSET', KEYS[4], queue, layout) end
    answer[t] = lost and -1 - head - length or redis.call('SISMEMBER', KEYS[3], queue)
  end
  if seal == '1' then sealing = sealing + 1 end
end
return answer
