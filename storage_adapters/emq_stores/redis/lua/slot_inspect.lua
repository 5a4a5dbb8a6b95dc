#!lua flags=no-writes
-- Return the sizes of the three states of many slots, the first waiting score, and the oldest claim.
-- KEYS  for each slot: zset store, zset prepare, zset dead, zset rests
-- ARGV  1 now in ms; then for each slot: highest first (0/1)
-- Returns for each slot {waiting, due, prepared, dead, score of the first or nil, token of the oldest claim or nil,
--       resting}.
-- O(slots log waiting).
local answer = {}
for s = 1, #ARGV - 1 do
  local store, prepare, dead, rests = unpack(KEYS, s * 4 - 3, s * 4)
  local waiting, backwards = redis.call('ZCARD', store), ARGV[s + 1] == '1'
  local due = backwards and waiting or redis.call('ZCOUNT', store, '-inf', ARGV[1])
  local first = redis.call(backwards and 'ZREVRANGE' or 'ZRANGE', store, 0, 0, 'WITHSCORES')[2]
  local oldest = redis.call('ZRANGE', prepare, 0, 0, 'WITHSCORES')[2]
  answer[s] = {
    waiting, due, redis.call('ZCARD', prepare), redis.call('ZCARD', dead), first or false, oldest or false,
    redis.call('ZCARD', rests),
  }
end
return answer
