#!lua flags=allow-oom
-- Take due entries of many slots: waiting -> prepared. Arm each slot with the due time of its next waiting entry.
-- KEYS  1 hash slot_armed, 2 hash fence, 3 zset woken, then for each claim: zset waiting, hash prepared, hash bodies
-- ARGV  1 now in ms, 2 the claimer's channel; then for each claim: slot, limit, epoch
-- Returns for each claim 0 (stale epoch) or {next due in ms (-1: none), id, body, ...}. O(claimed log entries).
local answer = {}
for c = 0, (#ARGV - 2) / 3 - 1 do
  local slot, limit, epoch = unpack(ARGV, 3 + c * 3, 5 + c * 3)
  local waiting, prepared, bodies = unpack(KEYS, 4 + c * 3, 6 + c * 3)
  local fence = tonumber(redis.call('HGET', KEYS[2], slot) or -1)
  if fence > tonumber(epoch) then
    answer[c + 1] = 0
  else
    if fence < tonumber(epoch) then redis.call('HSET', KEYS[2], slot, epoch) end
    local reply = {-1}
    local due = redis.call('ZRANGEBYSCORE', waiting, '-inf', ARGV[1], 'WITHSCORES', 'LIMIT', 0, limit)
    for i = 1, #due, 2 do
      local id = due[i]
      redis.call('ZREM', waiting, id)
      redis.call('HSET', prepared, id, epoch .. ' ' .. ARGV[1] .. ' ' .. due[i + 1])
      reply[#reply + 1] = id
      reply[#reply + 1] = redis.call('HGET', bodies, id)
    end
    local following = redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')[2]
    if following then reply[1] = tonumber(following) end
    redis.call('HSET', KEYS[1], slot, (following or '9007199254740991') .. ' ' .. ARGV[2])
    redis.call('ZREM', KEYS[3], ARGV[2] .. '\n' .. slot)
    answer[c + 1] = reply
  end
end
return answer
