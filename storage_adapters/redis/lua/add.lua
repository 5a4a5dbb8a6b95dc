#!lua
-- Add entries to slots (waiting, or dead at once), leaving ids that the slot has already; wake armed slots.
-- KEYS  1 hash slot_armed (slot -> "due channel"), 2 zset woken, then for each add: zset waiting, hash bodies,
--       zset dead, hash reasons
-- ARGV  1 now in ms; then for each add: slot, id, body, due_ms, reason, dead (0/1)
-- Returns 1 for each id that was new, else 0. Refuses as a whole when memory is full (OOM). O(adds log entries).
local answer = {}
for i = 0, (#ARGV - 1) / 6 - 1 do
  local slot, id, body, due, reason, dead = unpack(ARGV, 2 + i * 6, 7 + i * 6)
  local waiting, bodies, dead_set, reasons = unpack(KEYS, 3 + i * 4, 6 + i * 4)
  local new = redis.call('HSETNX', bodies, id, body)
  answer[i + 1] = new
  if new == 1 and dead == '1' then
    redis.call('ZADD', dead_set, ARGV[1], id)
    redis.call('HSET', reasons, id, reason)
  elseif new == 1 then
    redis.call('ZADD', waiting, due, id)
    local armed = redis.call('HGET', KEYS[1], slot)
    if armed then
      local at, channel = string.match(armed, '^(%S+) (.*)$')
      if tonumber(due) < tonumber(at) then
        redis.call('HDEL', KEYS[1], slot)
        redis.call('ZADD', KEYS[2], math.floor(tonumber(ARGV[1]) / 1000), channel .. '\n' .. slot)
        redis.call('PUBLISH', channel, slot)
      end
    end
  end
end
return answer
