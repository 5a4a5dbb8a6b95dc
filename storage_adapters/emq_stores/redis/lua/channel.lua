-- Part of the scripts that wake. Another program may have written over a host's channel. On a cluster, a publish to a
-- channel in another hash slot ends the script; so check the channel first.

-- True if the text is a channel of the same storage shard as `key`.
local function is_channel(channel, key)
  return string.find(channel, string.match(key, '^{[^}]*}') .. ':wake:', 1, true) == 1
end
