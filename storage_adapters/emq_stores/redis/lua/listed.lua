-- Part of all scripts on a list of servers: refuses, as a node of a cluster does, what this server does not serve.
-- ARGV  the last two: the range of hash slots of the call, and what this server should know of it (its own address)
do
  local expected, range = table.remove(ARGV), table.remove(ARGV)
  local known = redis.call('HGET', 'emq:servers', range)
  if not known then return redis.error_reply('CLUSTERDOWN the server has no record of its list') end
  if known ~= expected then
    if string.find(known, ' ', 1, true) then
      return redis.error_reply('TRYAGAIN range ' .. range .. ' moves to another server; does emq store spread run?')
    end
    return redis.error_reply('MOVED ' .. range .. ' ' .. known)
  end
end
