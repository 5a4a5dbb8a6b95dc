#!lua
-- Move the best members of one slot to prepare.
-- KEYS  1 zset store, 2 zset prepare
-- ARGV  1 most members, 2 score in prepare
-- Returns the members. O(members log entries).
local members = redis.call('ZRANGE', KEYS[1], 0, ARGV[1] - 1, 'REV')
if #members > 0 then
  local pairs = {}
  for i, member in ipairs(members) do
    pairs[i * 2 - 1] = ARGV[2]
    pairs[i * 2] = member
  end
  redis.call('ZREM', KEYS[1], unpack(members))
  redis.call('ZADD', KEYS[2], unpack(pairs))
end
return members
