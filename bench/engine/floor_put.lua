-- The least a server must do to take many messages: append them to one list.
-- KEYS 1 list; ARGV payloads. Returns nothing.
redis.call('RPUSH', KEYS[1], unpack(ARGV))
