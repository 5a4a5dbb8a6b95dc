#!lua flags=no-writes
-- A page of a slot's waiting members in claim order.
-- KEYS  1 zset store, 2 hash body
-- ARGV  1 highest first (0/1), 2 members to skip, 3 most members, 1 to 1,000
-- Returns {{member, score ...}, records}. O(log waiting + page).
local first = tonumber(ARGV[2])
local page = redis.call(
  ARGV[1] == '1' and 'ZREVRANGE' or 'ZRANGE', KEYS[1], first, first + tonumber(ARGV[3]) - 1, 'WITHSCORES')
local members = {}
for i = 1, #page, 2 do members[#members + 1] = page[i] end
return {page, #members > 0 and redis.call('HMGET', KEYS[2], unpack(members)) or {}}
