#!lua flags=no-writes
-- Return the types of keys' values.
-- KEYS  any
-- Returns for each key its type; "none" if the key does not exist. O(keys).
local answer = {}
for i, key in ipairs(KEYS) do answer[i] = redis.call('TYPE', key).ok end
return answer
