#!lua flags=allow-oom
-- Delete keys that another server of a list serves.
-- KEYS  any
-- Returns the number of keys. O(keys).
for _, key in ipairs(KEYS) do redis.call('UNLINK', key) end
return #KEYS
