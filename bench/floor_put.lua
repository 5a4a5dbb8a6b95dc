-- The least a server must do to take many messages: append them to one stream under offsets of its own.
-- KEYS 1 stream; ARGV payloads. Returns nothing.
local last = redis.call('XLEN', KEYS[1])
for i = 1, #ARGV do redis.call('XADD', KEYS[1], string.format('0-%.0f', last + i), 'm', ARGV[i]) end
