#!lua flags=no-writes
-- For many queues, return the first offset that is not trimmed, the next offset to be assigned, and the incarnation.
-- KEYS  1 hash head, then a list each
-- ARGV  the queues' names
-- Returns head (-1: damaged), tail and incarnation (0: none) of each queue in one flat list. O(queues).
-- include whole
local answer = {}
for q, text in ipairs(redis.call('HMGET', KEYS[1], unpack(ARGV))) do
  local head, incarnation = head_of(text)
  head = head or -1
  answer[q * 3 - 2] = head
  answer[q * 3 - 1] = head + redis.call('LLEN', KEYS[q + 1])
  answer[q * 3] = whole(incarnation, 0) or 0
end
return answer
