#!lua flags=no-writes
-- A page of a slot's dead letters in order of time of death and id.
-- KEYS  1 zset dead, 2 hash bodies, 3 hash reasons
-- ARGV  1, 2 time (ms) and id behind which the page starts, 3 most entries
-- Returns {id, body, reason, time of death in ms} for each. O(page + entries of the same millisecond).
local answer, limit, offset = {}, tonumber(ARGV[3]), 0
while #answer < limit do
  local page = redis.call('ZRANGEBYSCORE', KEYS[1], ARGV[1], '+inf', 'WITHSCORES', 'LIMIT', offset, limit)
  for i = 1, #page, 2 do
    if #answer < limit and (tonumber(page[i + 1]) > tonumber(ARGV[1]) or page[i] > ARGV[2]) then
      answer[#answer + 1] =
        {page[i], redis.call('HGET', KEYS[2], page[i]), redis.call('HGET', KEYS[3], page[i]), tonumber(page[i + 1])}
    end
  end
  if #page < limit * 2 then break end
  offset = offset + limit
end
return answer
