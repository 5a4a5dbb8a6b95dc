#!lua flags=no-writes
-- Return a page of a slot's dead members in order of time of death and member.
-- KEYS  1 zset dead, 2 hash deadbody, 3 hash reason
-- ARGV  1, 2 time (ms) and member behind which the page starts, 3 most members, 4 most bytes of members and records
-- Returns {member, time of death in ms, record, reason} for each. O(page + members of the same millisecond).
-- include dead_page
local answer, bytes = {}, tonumber(ARGV[4])
each_dead(KEYS[1], tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), function(member, ms)
  local record = redis.call('HGET', KEYS[2], member)
  answer[#answer + 1] = {member, ms, record, redis.call('HGET', KEYS[3], member)}
  bytes = bytes - #member - (record and #record or 0)
  return bytes > 0
end)
return answer
