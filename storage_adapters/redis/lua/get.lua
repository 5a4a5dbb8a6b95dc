#!lua flags=no-writes
-- The body at one offset.
-- KEYS  1 hash head, 2 list
-- ARGV  1 queue, 2 offset
-- Returns the body, or nothing for an offset below the head or beyond the tail. O(offsets from the nearer end, by node).
local index = tonumber(ARGV[2]) - tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or 1)
return index >= 0 and redis.call('LINDEX', KEYS[2], index)
