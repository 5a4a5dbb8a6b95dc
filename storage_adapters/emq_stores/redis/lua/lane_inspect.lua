#!lua flags=no-writes
-- Return the sizes of the three states of many lanes, and the due time of the next waiting entry.
-- KEYS  for each lane: zset waiting, hash prepared, zset dead
-- Returns waiting, prepared, dead, next due in ms (-1: none) for each lane in one flat list. O(lanes).
local answer = {}
for s = 1, #KEYS, 3 do
  local following = redis.call('ZRANGE', KEYS[s], 0, 0, 'WITHSCORES')[2]
  answer[#answer + 1] = redis.call('ZCARD', KEYS[s])
  answer[#answer + 1] = redis.call('HLEN', KEYS[s + 1])
  answer[#answer + 1] = redis.call('ZCARD', KEYS[s + 2])
  answer[#answer + 1] = tonumber(following or -1)
end
return answer
