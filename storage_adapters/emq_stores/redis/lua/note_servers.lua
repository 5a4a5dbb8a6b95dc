#!lua flags=allow-oom
-- Change the record of a list of servers, where the change is newer than what the record has.
-- KEYS  1 hash servers
-- ARGV  for each change: field, version, value
-- Returns for each change the value that the record has now. O(changes).
local answers = {}
for i = 1, #ARGV, 3 do
  local field, version = ARGV[i], ARGV[i] .. ':version'
  if tonumber(ARGV[i + 1]) > tonumber(redis.call('HGET', KEYS[1], version) or 0) then
    redis.call('HSET', KEYS[1], field, ARGV[i + 2], version, ARGV[i + 1])
  end
  answers[#answers + 1] = redis.call('HGET', KEYS[1], field)
end
return answers
