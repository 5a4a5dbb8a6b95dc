#!lua flags=allow-oom
-- Carry out verdicts on prepared and dead entries, and take back waiting ones; seal lanes and open them.
-- KEYS  1 hash lane_armed, 2 hash fence, 3 zset woken, 4 set sealed, then for each verdict: zset waiting, zset
--       ranks, hash prepared, hash bodies, zset dead, hash reasons
-- ARGV  1 now in ms; then for each verdict: lane, id, verdict, epoch (-1: not fenced), due_ms, priority, body, reason
-- Returns for each verdict 1 (done), 0 (not in the state it starts from), -1 (stale epoch).
-- Allowed on a full server, so that it can be drained. O(verdicts log entries).
-- include whole
-- include lane_ranks
-- include channel
-- include lane_waking
local answer = {}
for i = 0, (#ARGV - 1) / 8 - 1 do
  local lane, id, verdict, epoch, due, priority, body, reason = unpack(ARGV, 2 + i * 8, 9 + i * 8)
  local waiting, ranks, prepared, bodies, dead, reasons = unpack(KEYS, 5 + i * 6, 10 + i * 6)
  local done, leave
  epoch = tonumber(epoch)
  if epoch >= 0 and highest(redis.call('HGET', KEYS[2], lane), -1) > epoch then
    done = -1
  elseif verdict == 'seal' or verdict == 'open' then
    redis.call(verdict == 'seal' and 'SADD' or 'SREM', KEYS[4], lane)
    done = 1
  elseif verdict == 'replay' and redis.call('SISMEMBER', KEYS[4], lane) == 1 then
    done = 0
  elseif verdict == 'replay' or verdict == 'purge' then
    done = redis.call('ZSCORE', dead, id) and 1 or 0
    leave = function()
      redis.call('ZREM', dead, id)
      redis.call('HDEL', reasons, id)
    end
  elseif verdict == 'recall' then
    done = redis.call('ZSCORE', waiting, id) and 1 or 0
    leave = function()
      redis.call('ZREM', waiting, id)
      redis.call('ZREM', ranks, id)
    end
  else
    done = redis.call('HEXISTS', prepared, id)
    leave = function() redis.call('HDEL', prepared, id) end
  end
  if done == 1 and verdict ~= 'seal' and verdict ~= 'open' then
    if verdict == 'ack' or verdict == 'purge' or verdict == 'recall' then
      leave()
      redis.call('HDEL', bodies, id)
    else
      -- It arrives before it leaves: should a key be damaged, the verdict can be repeated.
      if verdict == 'dead' then
        redis.call('ZADD', dead, ARGV[1], id)
        redis.call('HSET', reasons, id, reason)
      else
        wait(waiting, ranks, id, priority, due)
      end
      redis.call('HSET', bodies, id, body)
      leave()
      if verdict ~= 'dead' then wake(lane, due) end
    end
  end
  answer[i + 1] = done
end
return answer
