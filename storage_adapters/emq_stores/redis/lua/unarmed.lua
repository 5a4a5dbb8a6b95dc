#!lua flags=no-writes
-- Return which queues and lanes are not armed for an instance, and which lanes have an entry due.
-- KEYS  1 hash armed, 2 hash lane_armed
-- ARGV  1 the instance's channel, 2 now in ms, then the names
-- Returns their names. O(names).
local channel, now, found = ARGV[1], tonumber(ARGV[2]), {}
local names = {unpack(ARGV, 3)}
local queues, lanes = redis.call('HMGET', KEYS[1], unpack(names)), redis.call('HMGET', KEYS[2], unpack(names))
for n, name in ipairs(names) do
  local due, of = string.match(lanes[n] or '', '^(%S+) (.*)$')
  local awaited = of == channel and (tonumber(due) or 0) > now
  if queues[n] ~= channel and not awaited then found[#found + 1] = name end
end
return found
