#!lua
-- Write keys that another server of a list has dumped.
-- KEYS  any
-- ARGV  for each key: time at which it expires in ms, 0 for never; its dump, '' if it is gone
-- Returns the number of keys. O(bytes).
for i, key in ipairs(KEYS) do
  if ARGV[2 * i] == '' then
    redis.call('UNLINK', key)
  else
    redis.call('RESTORE', key, ARGV[2 * i - 1], ARGV[2 * i], 'REPLACE', 'ABSTTL')
  end
end
return #KEYS
