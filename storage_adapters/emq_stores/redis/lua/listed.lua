-- Part of all scripts on a list of servers: refuses, as a node of a cluster does, what this server does not serve.
-- While a range leaves this server, notes the keys that calls may change, so that they are copied again. Scripts that
-- only read may not note anything, and need not.
-- ARGV  the last two: the range of hash slots of the call, and what this server should know of it (its own address)
do
  local only_reads = false
  local expected, range = table.remove(ARGV), table.remove(ARGV)
  local known = redis.call('HGET', 'emq:servers', range)
  if not known then return redis.error_reply('CLUSTERDOWN the server has no record of its list') end
  if known ~= expected then
    local server, run = string.match(known, '^(%S+) %S+ %S+ (%S+)$')
    if server and server ~= expected then return redis.error_reply('MOVED ' .. range .. ' ' .. server) end
    if server and string.find(redis.call('INFO', 'server'), 'run_id:' .. run, 1, true) then
      local uncopied = 'emq:servers:uncopied:' .. range
      if not only_reads and redis.call('EXISTS', uncopied) == 1 then
        for _, key in ipairs(KEYS) do redis.call('ZADD', uncopied, 1, key) end
      end
    elseif string.find(known, ' ', 1, true) then
      return redis.error_reply('TRYAGAIN range ' .. range .. ' moves to another server; does emq store spread run?')
    else
      return redis.error_reply('MOVED ' .. range .. ' ' .. known)
    end
  end
end
