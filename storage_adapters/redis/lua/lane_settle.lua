#!lua flags=allow-oom
-- Carry out verdicts on prepared and dead entries, and take back waiting ones.
-- KEYS  1 hash slot_armed, 2 hash fence, 3 zset woken, then for each verdict: zset waiting, zset ranks, hash prepared,
--       hash bodies, zset dead, hash reasons
-- ARGV  1 now in ms; then for each verdict: slot, id, verdict, epoch (-1: not fenced), due_ms, priority, body, reason
-- Returns for each verdict 1 (done), 0 (not in the state it starts from), -1 (stale epoch).
-- Allowed on a full server, so that it can be drained. O(verdicts log entries).
-- include lane_ranks
-- include lane_waking
local answer = {}
for i = 0, (#ARGV - 1) / 8 - 1 do
  local slot, id, verdict, epoch, due, priority, body, reason = unpack(ARGV, 2 + i * 8, 9 + i * 8)
  local waiting, ranks, prepared, bodies, dead, reasons = unpack(KEYS, 4 + i * 6, 9 + i * 6)
  local done
  epoch = tonumber(epoch)
  if epoch >= 0 and tonumber(redis.call('HGET', KEYS[2], slot) or -1) > epoch then
    done = -1
  elseif verdict == 'replay' or verdict == 'purge' then
    done = redis.call('ZREM', dead, id)
    if done == 1 then redis.call('HDEL', reasons, id) end
  elseif verdict == 'recall' then
    done = redis.call('ZREM', waiting, id)
    redis.call('ZREM', ranks, id)
  else
    done = redis.call('HDEL', prepared, id)
  end
  if done == 1 then
    if verdict == 'ack' or verdict == 'purge' or verdict == 'recall' then
      redis.call('HDEL', bodies, id)
    else
      redis.call('HSET', bodies, id, body)
      if verdict == 'dead' then
        redis.call('ZADD', dead, ARGV[1], id)
        redis.call('HSET', reasons, id, reason)
      else
        wait(waiting, ranks, id, priority, due)
        wake(slot, due)
      end
    end
  end
  answer[i + 1] = done
end
return answer
