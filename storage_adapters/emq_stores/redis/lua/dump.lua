#!lua flags=no-writes
-- Dump keys for another server of a list.
-- KEYS  any
-- ARGV  1 bytes of dumps after which no further key is dumped
-- Returns for each key dumped: time at which it expires in ms, 0 for never; its dump, false if it is gone. O(bytes).
local dumps, left = {}, tonumber(ARGV[1])
for _, key in ipairs(KEYS) do
  local dump = redis.call('DUMP', key)
  dumps[#dumps + 1] = {math.max(0, redis.call('PEXPIRETIME', key)), dump}
  left = left - (dump and #dump or 0)
  if left <= 0 then break end
end
return dumps
