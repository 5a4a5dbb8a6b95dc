-- Part of the lane scripts: wakes the host that is armed for a later due time.
-- KEYS  1 hash lane_armed (lane -> "due channel"), 3 zset woken
local function wake(lane, due)
  local armed = redis.call('HGET', KEYS[1], lane)
  if armed then
    local at, channel = string.match(armed, '^(%S+) (.*)$')
    at = tonumber(at)
    if not (at and is_channel(channel, KEYS[1])) then
      redis.call('HDEL', KEYS[1], lane) -- damaged: its host finds out when it looks at all of its lanes
    elseif tonumber(due) < at then
      redis.call('ZADD', KEYS[3], 0, channel .. '\n' .. lane)
      redis.call('HDEL', KEYS[1], lane)
      redis.call('PUBLISH', channel, lane)
    end
  end
end
