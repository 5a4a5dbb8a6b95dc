-- Return the payloads of many queues, without progress, fencing or arming: the least work with which a server can.
-- KEYS lists; ARGV first index and last index for each. Returns the payloads of each.
local answer = {}
for i = 1, #KEYS do answer[i] = redis.call('LRANGE', KEYS[i], ARGV[i * 2 - 1], ARGV[i * 2]) end
return answer
