#!lua flags=no-writes
-- Find entries of lanes by an identity, or by the id that their publishers chose.
-- KEYS  for each: hash bodies, zset named, zset waiting, zset dead
-- ARGV  1 most entries of each; then for each: id, begin and end of the range of names that may have this label
-- Returns for each a flat list: id, state ("waiting", "prepared", "dead"). O(asked log entries + found).
local answer = {}
for i = 0, #KEYS / 4 - 1 do
  local bodies, named, waiting, dead = unpack(KEYS, 1 + i * 4, 4 + i * 4)
  local id, from, to = unpack(ARGV, 2 + i * 3, 4 + i * 3)
  local found, flat = redis.call('ZRANGEBYLEX', named, '[' .. from, '(' .. to, 'LIMIT', 0, ARGV[1]), {}
  found[#found + 1] = id
  for _, each in ipairs(found) do
    if redis.call('HEXISTS', bodies, each) == 1 then
      local state = redis.call('ZSCORE', waiting, each) and 'waiting' or redis.call('ZSCORE', dead, each) and 'dead'
      flat[#flat + 1] = each
      flat[#flat + 1] = state or 'prepared'
    end
  end
  answer[i + 1] = flat
end
return answer
