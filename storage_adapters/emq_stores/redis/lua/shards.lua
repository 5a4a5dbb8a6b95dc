#!lua flags=allow-oom
-- Return the number of shards. Store the caller's, if there is none yet; a full server can be opened, and drained.
-- KEYS  1 string shards
-- ARGV  1 the caller's number
-- Returns the number. O(1).
redis.call('SET', KEYS[1], ARGV[1], 'NX')
return redis.call('GET', KEYS[1])
