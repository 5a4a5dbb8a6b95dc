-- Append many messages to one list: the least work with which a server can take them.
-- KEYS 1 list; ARGV payloads. Returns nothing.
redis.call('RPUSH', KEYS[1], unpack(ARGV))
