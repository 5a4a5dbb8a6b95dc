#!lua flags=allow-oom
-- Note a step of a move of a range in the record of a list of servers, if nothing has come between; see moving.py.
-- KEYS  1 hash servers  2 zset uncopied
-- ARGV  1 range  2 run in which this server must be  3 value that the record must have, unless it has the new one: who
--       reads the records may have brought it  4 version, 5 value of the step  6 ms for which keys are noted, if the
--       range begins to leave this server; else 0
-- Returns 1; 0 if the record has another value; -1 if the server was restarted. O(1).
local version, known = ARGV[1] .. ':version', redis.call('HGET', KEYS[1], ARGV[1])
if not string.find(redis.call('INFO', 'server'), 'run_id:' .. ARGV[2], 1, true) then return -1 end
if known ~= ARGV[3] and known ~= ARGV[5] then return 0 end
if tonumber(redis.call('HGET', KEYS[1], version)) > tonumber(ARGV[4]) then return 0 end
if ARGV[6] ~= '0' then
  redis.call('UNLINK', KEYS[2])
  redis.call('ZADD', KEYS[2], 0, '')
  redis.call('PEXPIRE', KEYS[2], ARGV[6])
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[5], version, ARGV[4])
return 1
