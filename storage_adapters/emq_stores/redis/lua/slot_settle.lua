#!lua flags=allow-oom
-- Carry out verdicts one by one, except those that slot_ack carries out. Wake armed slots. Allowed on a full server.
-- KEYS  for each batch: zset store, zset prepare, zset dead, hash own, hash body, hash preparebody, hash deadbody,
--       hash reason, hash history, hash retries, zset rests, hash restscores
-- ARGV  1 now in ms; then for each batch, of one slot: address, highest first (0/1), fold, its Lua text, number of
--       verdicts; then for each: verdict, member, token, epoch ("": not fenced), score, reason (JSON; "": none), the
--       score that its waiting twin keeps (see slot_add; "-": the twin's own), end of its rest in ms
-- Returns a flat list: 1 done, 0 the member has another state or token than the verdict needs, -1 stale epoch.
-- O(verdicts log members + bytes).
-- include slot_waking
-- include slot_folds
-- include slot_moves
-- include whole
-- include slot_mine
local answer, k, a = {}, 1, 2

local administered = {
  seal = function(slot) return redis.call('HSET', slot.own, 'sealed', 1) and 1 end,
  open = function(slot) return redis.call('HDEL', slot.own, 'sealed') end,
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
      if not redis.call('ZSCORE', slot.prepare, member) then redis.call('HDEL', slot.retries, member) end
    end
    return done
  end,
  replay = function(slot, member, score, fold, lua)
    if not redis.call('ZSCORE', slot.dead, member) or redis.call('HEXISTS', slot.own, 'sealed') == 1 then return 0 end
    if wait_again(slot, member, score, slot.deadbody, fold, lua) then return 0 end
    local _, _, before = string.find(redis.call('HGET', slot.reason, member) or '', '\n(.*)')
    local since = redis.call('HGET', slot.history, member)
    if before then redis.call('HSET', slot.history, member, before) end
    if before and since then remember(slot, member, since) end
    redis.call('HDEL', slot.reason, member)
    return redis.call('ZREM', slot.dead, member)
  end,
}

-- Give the waiting twin of a member the score that the twin would have if the member had waited all the time.
local function keep_score(slot, member, score, keep)
  if keep == 'NX' then
    redis.call('ZADD', slot.store, 'XX', score, member)
  elseif keep == 'LT' or keep == 'GT' then
    redis.call('ZADD', slot.store, 'XX', keep, score, member)
  end
end

-- Return 1 if the verdict was done, else 0; with 0 also return true if the member is EMQ's.
local function settle(slot, fold, lua, verdict, member, token, score, reason, keep, rest_ms)
  if administered[verdict] then return administered[verdict](slot, member, score, fold, lua) end
  local found = redis.call('ZSCORE', slot.prepare, member)
  if not found or tonumber(found) ~= tonumber(token) or redis.call('ZSCORE', slot.rests, member) then return 0 end
  if verdict == 'yield' then
    if not redis.call('ZSCORE', slot.store, member) then return 0, true end
    verdict = 'retry'
  end
  if verdict == 'rest' then
    if reason ~= '' then remember(slot, member, ARGV[1] .. ' ' .. reason) end
    rest(slot, member, tonumber(token) % 1000, score, tonumber(rest_ms))
  elseif verdict == 'retry' then
    keep_score(slot, member, score, keep)
    if reason ~= '' then note_failed(slot, member, tonumber(token) % 1000) end
    roll_back(slot, member, score, ARGV[1], reason, fold, lua)
  elseif verdict == 'dead' then
    bury(slot, member, ARGV[1], reason, fold, lua)
  else
    redis.call('ZREM', slot.prepare, member)
    redis.call('HDEL', slot.preparebody, member)
    redis.call('HDEL', slot.history, member)
    redis.call('HDEL', slot.retries, member)
  end
  return 1
end

while a <= #ARGV do
  local slot, n = slot_at(k), tonumber(ARGV[a + 4])
  local owned = redis.call('HMGET', slot.own, 'epoch', 'mine')
  local fence, moved, sure = highest(owned[1], -1), 0, true
  for i = a + 5, a + 4 + 8 * n, 8 do
    local verdict, member, token, epoch, score, reason, keep, rest_ms = unpack(ARGV, i, i + 7)
    if epoch ~= '' and fence > tonumber(epoch) then
      answer[#answer + 1] = -1
    else
      local done, ours = settle(slot, ARGV[a + 2], ARGV[a + 3], verdict, member, token, score, reason, keep, rest_ms)
      if not administered[verdict] then
        moved, sure = moved + done, sure and (done == 1 or ours)
      end
      answer[#answer + 1] = done
    end
  end
  have_left(slot.own, owned[2], moved, sure)
  wake(ARGV[a], slot.store, slot.prepare, slot.own, ARGV[a + 1] == '1')
  k, a = k + KEYS_OF_SLOT, a + 5 + 8 * n
end
publish()
return answer
