#!lua flags=allow-oom
-- Have keys of a range that leaves this server copied; lua/listed.lua notes them.
-- KEYS  any
-- Returns the number of keys. O(keys).
return #KEYS
