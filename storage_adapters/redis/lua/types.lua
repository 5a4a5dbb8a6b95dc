#!lua flags=no-writes
-- The types of keys' values.
-- KEYS  any
-- Returns for each key its type, "none" where it does not exist. O(keys).
local answer = {}
for i, key in ipairs(KEYS) do answer[i] = redis.call('TYPE', key).ok end
return answer
