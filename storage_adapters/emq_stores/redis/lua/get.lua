#!lua flags=no-writes
-- Return the body at one offset.
-- KEYS  1 hash head, 2 list
-- ARGV  1 queue, 2 offset
-- Returns the body, or nothing for an offset below the head or beyond the tail. O(nodes from the nearer end).
-- include whole
local head = head_of(redis.call('HGET', KEYS[1], ARGV[1]))
if not head then return redis.error_reply('ERR the head of queue ' .. ARGV[1] .. ' is damaged') end
local index = tonumber(ARGV[2]) - head
return index >= 0 and redis.call('LINDEX', KEYS[2], index)
