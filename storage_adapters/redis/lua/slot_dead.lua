#!lua flags=no-writes
-- A page of a slot's dead members in order of time of death and member.
-- KEYS  1 zset dead, 2 hash deadbody, 3 hash reason
-- ARGV  1, 2 time (ms) and member behind which the page starts, 3 most members
-- Returns {member, time of death in ms, record, reason} for each. O(page + members of the same millisecond).
local answer, limit, offset = {}, tonumber(ARGV[3]), 0
local after = tonumber(ARGV[1])
while #answer < limit do
  local page = redis.call('ZRANGEBYSCORE', KEYS[1], ARGV[1], '+inf', 'WITHSCORES', 'LIMIT', offset, limit)
  for i = 1, #page, 2 do
    local member, ms = page[i], math.min(math.floor(tonumber(page[i + 1])), 9007199254740991)
    if #answer < limit and (ms > after or ms == after and member > ARGV[2]) then
      answer[#answer + 1] =
        {member, ms, redis.call('HGET', KEYS[2], member), redis.call('HGET', KEYS[3], member)}
    end
  end
  if #page < limit * 2 then break end
  offset = offset + limit
end
return answer
