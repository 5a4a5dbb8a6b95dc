-- Part of the scripts that wake: what somebody wrote where a host's channel should be is no channel, and a cluster ends
-- the script for one that lies in another hash slot.

-- Whether it is a channel of the same storage shard as `key`.
local function is_channel(channel, key)
  return string.find(channel, string.match(key, '^{[^}]*}') .. ':wake:', 1, true) == 1
end
