-- The least a server must do to hand over what many streams hold: payloads only, no progress, no fencing, no arming.
-- KEYS streams; ARGV first id and most entries for each. Returns the payloads of each.
local answer = {}
for i = 1, #KEYS do
  local found = redis.call('XRANGE', KEYS[i], ARGV[i * 2 - 1], '+', 'COUNT', ARGV[i * 2])
  local bodies = {}
  for j = 1, #found do bodies[j] = found[j][2][2] end
  answer[i] = bodies
end
return answer
