#!lua flags=allow-oom
-- Return the wake-ups of one instance after which no read or claim came. Forget those of instances that are long gone.
-- KEYS  1 zset watchers, 2 zset woken
-- ARGV  1 the instance's channel, 2 seconds without a sweep after which an instance is gone
-- Returns the names of woken queues and lanes. O(names + log woken).
local function range_of(channel) return '[' .. channel .. '\n', '(' .. channel .. '\n\255' end

-- Use the server's clock: the clocks of the instances may differ by more than the limit.
local now = tonumber(redis.call('TIME')[1])
redis.call('ZADD', KEYS[1], now, ARGV[1])
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2], 'LIMIT', 0, 100)) do
  redis.call('ZREMRANGEBYLEX', KEYS[2], range_of(gone))
  redis.call('ZREM', KEYS[1], gone)
end
local names = {}
for i, found in ipairs(redis.call('ZRANGEBYLEX', KEYS[2], range_of(ARGV[1]))) do
  names[i] = string.sub(found, #ARGV[1] + 2)
end
return names
