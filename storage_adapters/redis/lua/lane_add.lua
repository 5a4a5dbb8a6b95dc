#!lua
-- Add entries to slots (waiting, or dead at once), leaving ids that the slot has already; wake armed slots.
-- KEYS  1 hash slot_armed (slot -> "due channel"), 2 hash fence, 3 zset woken, then for each add: zset waiting,
--       zset ranks, hash bodies, zset dead, hash reasons
-- ARGV  1 now in ms; then for each add: slot, id, epoch (-1: not fenced), body, due_ms, priority, reason, dead (0/1)
-- Returns 1 for each id that was new, 0 where it was not, -1 (stale epoch). Refuses as a whole when memory is full
--       (OOM), unless the caller allows it. O(adds log entries).
local SPAN = 562949953421312 -- 2^49
local function rank(priority, due)
  return priority * SPAN + math.max(0, math.min(due, SPAN - 1))
end
local answer = {}
for i = 0, (#ARGV - 1) / 8 - 1 do
  local slot, id, epoch, body, due, priority, reason, dead = unpack(ARGV, 2 + i * 8, 9 + i * 8)
  local waiting, ranks, bodies, dead_set, reasons = unpack(KEYS, 4 + i * 5, 8 + i * 5)
  local new = -1
  if tonumber(epoch) < 0 or tonumber(redis.call('HGET', KEYS[2], slot) or -1) <= tonumber(epoch) then
    new = redis.call('HSETNX', bodies, id, body)
  end
  answer[i + 1] = new
  if new == 1 and dead == '1' then
    redis.call('ZADD', dead_set, ARGV[1], id)
    redis.call('HSET', reasons, id, reason)
  elseif new == 1 then
    redis.call('ZADD', waiting, due, id)
    redis.call('ZADD', ranks, rank(priority, due), id)
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
end
return answer
