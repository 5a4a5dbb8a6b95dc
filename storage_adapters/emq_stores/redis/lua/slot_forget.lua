#!lua flags=allow-oom
-- Forget slots of topics that are gone; see forget.lua.
-- KEYS  for each slot: all of its keys; the first four are zset store, zset prepare, zset dead, hash own
-- ARGV  1 number of keys of a slot, then for each slot the caller's mark (below 0)
-- Returns 1 for each slot that is forgotten, or was never there, 0 for one that stays. O(slots).
local answer, n = {}, tonumber(ARGV[1])
for s = 1, #ARGV - 1 do
  local k = (s - 1) * n + 1
  local own = KEYS[k + 3]
  answer[s] = redis.call('EXISTS', unpack(KEYS, k, k + n - 1)) == 0 and 1 or 0
  if redis.call('HEXISTS', own, 'sealed') == 1 and redis.call('EXISTS', unpack(KEYS, k, k + 2)) == 0 then
    if redis.call('HGET', own, 'epoch') == ARGV[s + 1] then
      redis.call('DEL', unpack(KEYS, k, k + n - 1))
      answer[s] = 1
    else
      redis.call('HSET', own, 'epoch', ARGV[s + 1])
    end
  end
end
return answer
