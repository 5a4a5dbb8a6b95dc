#!lua flags=allow-oom
-- Take keys of a range that are to be copied to another server of a list, and dump them.
-- KEYS  1 zset uncopied: the keys, score = 1; with score 0 an empty one, which stays, so that the set expires as a whole
-- ARGV  1 most keys  2 bytes of dumps after which no further key is dumped  3 ms after which the set expires
-- Returns the number of keys left, and for each key taken: key, time at which it expires in ms, 0 for never, and its
-- dump, '' if the key is gone. Returns false if the set has expired. O(bytes).
if redis.call('PEXPIRE', KEYS[1], ARGV[3]) == 0 then return false end
local taken, left = {}, tonumber(ARGV[2])
for _, key in ipairs(redis.call('ZRANGE', KEYS[1], 1, 'inf', 'BYSCORE', 'LIMIT', 0, ARGV[1])) do
  local dump = redis.call('DUMP', key) or ''
  taken[#taken + 1] = {key, math.max(0, redis.call('PEXPIRETIME', key)), dump}
  redis.call('ZREM', KEYS[1], key)
  left = left - #dump
  if left <= 0 then break end
end
return {redis.call('ZCARD', KEYS[1]) - 1, taken}
