#!lua flags=allow-oom
-- Carry out verdicts on prepared and dead entries, and take back waiting ones. Seal and open lanes; forget the entries
-- that were taken for good.
-- KEYS  1 hash lane_armed, 2 hash fence, 3 zset woken, 4 set sealed, then for each verdict: zset waiting, zset
--       ranks, hash prepared, hash bodies, zset dead, hash reasons, zset taken, hash taken_ms, zset named
-- ARGV  1 now in ms, 2 for how many ms to remember an entry taken for good, 3 most such entries of a lane, 4 how many
--       ms a caller's clock may be ahead; then for each verdict: lane, id, verdict, epoch (-1: not fenced), due_ms,
--       priority, body, reason, for good (0/1)
-- Returns for each verdict 1 (done), 0 (the entry is not in the state that the verdict needs), -1 (stale epoch).
-- Allowed on a full server, so that it can be drained. O(verdicts log entries).
-- include whole
-- include lane_ranks
-- include channel
-- include lane_waking
-- Remember an entry, and forget the oldest. Entries stay in the order of the calls, since callers' clocks may differ.
local function remember(taken, times, id)
  local now, last = tonumber(ARGV[1]), tonumber(redis.call('ZREVRANGE', taken, 0, 0, 'WITHSCORES')[2] or 0)
  redis.call('ZADD', taken, string.format('%.0f', last > now and last + 1 or now), id)
  if last > now then redis.call('HSET', times, id, ARGV[1]) end
  local old = redis.call('ZRANGEBYSCORE', taken, '-inf', '(' .. string.format('%.0f', now - ARGV[2] - ARGV[4]))
  if #old == 0 then old = redis.call('ZRANGE', taken, 0, -1 - ARGV[3]) end
  for _, each in ipairs(old) do
    redis.call('ZREM', taken, each)
    redis.call('HDEL', times, each)
  end
  redis.call('PEXPIRE', taken, ARGV[2])
  redis.call('PEXPIRE', times, ARGV[2])
end

local answer = {}
for i = 0, (#ARGV - 4) / 9 - 1 do
  local lane, id, verdict, epoch, due, priority, body, reason, for_good = unpack(ARGV, 5 + i * 9, 13 + i * 9)
  local waiting, ranks, prepared, bodies, dead, reasons, taken, times, named = unpack(KEYS, 5 + i * 9, 13 + i * 9)
  local done, leave
  epoch = tonumber(epoch)
  if epoch >= 0 and highest(redis.call('HGET', KEYS[2], lane), -1) > epoch then
    done = -1
  elseif verdict == 'seal' or verdict == 'open' then
    done = redis.call(verdict == 'seal' and 'SADD' or 'SREM', KEYS[4], lane)
    if verdict == 'seal' then done = 1 end
  elseif verdict == 'forget' then
    redis.call('DEL', taken, times)
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
    local claim = redis.call('HGET', prepared, id)
    done = claim and 1 or 0
    leave = function() redis.call('HDEL', prepared, id) end
    -- A retry that is sent again finds the entry that it put back, claimed again: that claim stays.
    if claim and verdict == 'retry' and string.match(claim, '^%S+ %S+ (%S+)') == string.format('%.0f', due)
        and redis.call('HGET', bodies, id) == body then
      leave = nil
    end
  end
  if done == 1 and leave then
    if verdict == 'ack' or verdict == 'purge' or verdict == 'recall' then
      if for_good == '1' then
        remember(taken, times, id)
      end
      leave()
      redis.call('HDEL', bodies, id)
      redis.call('ZREM', named, id)
    else
      -- The entry arrives before it leaves: after damage to a key, the verdict can be repeated.
      if verdict == 'dead' then
        redis.call('ZADD', dead, ARGV[1], id)
        redis.call('HSET', reasons, id, reason)
      else
        wake(lane, due) -- first: else, after damage to the key of wake-ups, nobody would hear of the entry
        wait(waiting, ranks, id, priority, due)
      end
      redis.call('HSET', bodies, id, body)
      leave()
    end
  end
  answer[i + 1] = done
end
return answer
