#!lua flags=no-writes
-- For many queues, return the first offset that is not trimmed and the next offset to be assigned.
-- KEYS  1 hash head, then a list each
-- ARGV  the queues' names
-- Returns head (-1: damaged) and tail of each queue in one flat list. O(queues).
-- include whole
local answer = {}
for q, head in ipairs(redis.call('HMGET', KEYS[1], unpack(ARGV))) do
  head = head_of(head) or -1
  answer[q * 2 - 1] = head
  answer[q * 2] = head + redis.call('LLEN', KEYS[q + 1])
end
return answer
