#!lua flags=allow-oom
-- Carry out verdicts one by one, for all that slot_ack does not do; wake armed slots. Allowed on a full server.
-- KEYS  for each batch: zset store, zset prepare, zset dead, hash own, hash body, hash preparebody, hash deadbody,
--       hash reason, hash history
-- ARGV  1 now in ms; then for each batch, of one slot: address, highest first (0/1), fold, its Lua text, number of
--       verdicts; then for each: verdict, member, token, epoch ("": not fenced), score, reason (JSON; "": none)
-- Returns a flat list: 1 done, 0 not in the state or under the token it starts from, -1 stale epoch.
-- O(verdicts log members + bytes).
-- include slot_waking
-- include slot_folds
-- include slot_moves
local answer, k, a = {}, 1, 2

local administered = {
  purge = function(slot, member)
    redis.call('HDEL', slot.deadbody, member)
    redis.call('HDEL', slot.reason, member)
    return redis.call('ZREM', slot.dead, member)
  end,
  recall = function(slot, member)
    local done = redis.call('ZREM', slot.store, member)
    if done == 1 then
      redis.call('HDEL', slot.body, member)
      if not redis.call('ZSCORE', slot.prepare, member) then redis.call('HDEL', slot.history, member) end
    end
    return done
  end,
  replay = function(slot, member, score, fold, lua)
    if not redis.call('ZSCORE', slot.dead, member) then return 0 end
    if wait_again(slot, member, score, slot.deadbody, fold, lua) then return 0 end
    local _, _, before = string.find(redis.call('HGET', slot.reason, member) or '', '\n(.*)')
    local since = redis.call('HGET', slot.history, member)
    if before then redis.call('HSET', slot.history, member, before) end
    if before and since then remember(slot, member, since) end
    redis.call('HDEL', slot.reason, member)
    return redis.call('ZREM', slot.dead, member)
  end,
}

local function settle(slot, fold, lua, verdict, member, token, score, reason)
  if administered[verdict] then return administered[verdict](slot, member, score, fold, lua) end
  local found = redis.call('ZSCORE', slot.prepare, member)
  if not found or tonumber(found) ~= tonumber(token) then return 0 end
  if verdict == 'retry' then
    roll_back(slot, member, score, ARGV[1], reason, fold, lua)
  elseif verdict == 'dead' then
    bury(slot, member, ARGV[1], reason, fold, lua)
  else
    redis.call('ZREM', slot.prepare, member)
    redis.call('HDEL', slot.preparebody, member)
    redis.call('HDEL', slot.history, member)
  end
  return 1
end

while a <= #ARGV do
  local slot, n = slot_at(k), tonumber(ARGV[a + 4])
  local fence = tonumber(redis.call('HGET', slot.own, 'epoch') or -1)
  for i = a + 5, a + 4 + 6 * n, 6 do
    local verdict, member, token, epoch, score, reason = unpack(ARGV, i, i + 5)
    if epoch ~= '' and fence > tonumber(epoch) then
      answer[#answer + 1] = -1
    else
      answer[#answer + 1] = settle(slot, ARGV[a + 2], ARGV[a + 3], verdict, member, token, score, reason)
    end
  end
  wake(ARGV[a], slot.store, slot.prepare, slot.own, ARGV[a + 1] == '1')
  k, a = k + KEYS_OF_SLOT, a + 5 + 6 * n
end
publish()
return answer
