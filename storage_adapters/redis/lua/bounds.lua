#!lua flags=no-writes
-- First offset that is not trimmed and next offset to be assigned, for many queues.
-- KEYS  1 hash tail, then a stream each
-- ARGV  the queues' names
-- Returns head, tail for each queue in one flat list. O(queues).
local answer = {}
for q = 1, #ARGV do
  local tail = tonumber(redis.call('HGET', KEYS[1], ARGV[q]) or 0) + 1
  local first = redis.call('XRANGE', KEYS[q + 1], '-', '+', 'COUNT', 1)[1]
  answer[#answer + 1] = first and tonumber(string.sub(first[1], 3)) or tail
  answer[#answer + 1] = tail
end
return answer
