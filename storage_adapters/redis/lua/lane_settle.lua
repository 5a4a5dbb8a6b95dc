#!lua flags=allow-oom
-- Carry out verdicts on prepared and dead entries, and take back waiting ones.
-- KEYS  1 hash slot_armed, 2 hash fence, 3 zset woken, then for each verdict: zset waiting, hash prepared,
--       hash bodies, zset dead, hash reasons
-- ARGV  1 now in ms; then for each verdict: slot, id, verdict, epoch (-1: not fenced), due_ms, body, reason
-- Returns for each verdict 1 (done), 0 (not in the state it starts from), -1 (stale epoch).
-- Allowed on a full server, so that it can be drained. O(verdicts log entries).
local answer = {}
local function wait(i, slot, id, due, waiting)
  redis.call('ZADD', waiting, due, id)
  local armed = redis.call('HGET', KEYS[1], slot)
  if armed then
    local at, channel = string.match(armed, '^(%S+) (.*)$')
    if tonumber(due) < tonumber(at) then
      redis.call('HDEL', KEYS[1], slot)
      redis.call('ZADD', KEYS[3], 0, channel .. '\n' .. slot)
      redis.call('PUBLISH', channel, slot)
    end
  end
end
for i = 0, (#ARGV - 1) / 7 - 1 do
  local slot, id, verdict, epoch, due, body, reason = unpack(ARGV, 2 + i * 7, 8 + i * 7)
  local waiting, prepared, bodies, dead, reasons = unpack(KEYS, 4 + i * 5, 8 + i * 5)
  local done
  epoch = tonumber(epoch)
  if epoch >= 0 and tonumber(redis.call('HGET', KEYS[2], slot) or -1) > epoch then
    done = -1
  elseif verdict == 'replay' or verdict == 'purge' then
    done = redis.call('ZREM', dead, id)
    if done == 1 then redis.call('HDEL', reasons, id) end
  elseif verdict == 'recall' then
    done = redis.call('ZREM', waiting, id)
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
        wait(i, slot, id, due, waiting)
      end
    end
  end
  answer[i + 1] = done
end
return answer
