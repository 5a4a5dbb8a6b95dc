#!lua flags=no-writes
-- Return a page of a lane's dead letters in order of time of death and id.
-- KEYS  1 zset dead, 2 hash bodies, 3 hash reasons
-- ARGV  1, 2 time (ms) and id behind which the page starts, 3 most entries, 4 most bytes of bodies
-- Returns {id, body, reason, time of death in ms} for each. O(page + entries of the same millisecond).
-- include dead_page
local answer, bytes = {}, tonumber(ARGV[4])
each_dead(KEYS[1], tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), function(id, ms)
  local body = redis.call('HGET', KEYS[2], id)
  answer[#answer + 1] = {id, body, redis.call('HGET', KEYS[3], id), ms}
  bytes = bytes - (body and #body or 0)
  return bytes > 0
end)
return answer
