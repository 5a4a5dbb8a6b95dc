#!lua flags=no-writes
-- Return the state of many lanes.
-- KEYS  1 set sealed, then for each lane: zset waiting, hash prepared, zset dead
-- ARGV  the lanes
-- Returns {waiting, prepared, dead, next due in ms (-1: none), 1 if the lane is sealed} for each lane. O(lanes).
local answer = {}
for n, lane in ipairs(ARGV) do
  local waiting, prepared, dead = KEYS[3 * n - 1], KEYS[3 * n], KEYS[3 * n + 1]
  answer[n] = {
    redis.call('ZCARD', waiting),
    redis.call('HLEN', prepared),
    redis.call('ZCARD', dead),
    tonumber(redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')[2] or -1),
    redis.call('SISMEMBER', KEYS[1], lane),
  }
end
return answer
