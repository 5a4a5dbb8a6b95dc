#!lua flags=allow-oom
-- Roll back what is in prepare: everything under a new epoch, else what was claimed before a given time; retries left
-- become the score, members without any are dead. Wake armed slots. Allowed on a full server.
-- KEYS  for each slot: as for slot_settle
-- ARGV  1 now in ms, 2 most members in this call; then for each slot: address, highest first (0/1), epoch, claimed
--       before (ms; "-inf": by epoch only), reason (JSON; "": none), number of members to leave, those members
-- Returns for each slot {members moved (-1: stale epoch), more are left (0/1)}; a new epoch counts once none are left.
--       Fewer answers than slots, at least one, once the most members are reached. O(members log members + bytes).
-- include slot_waking
-- include slot_folds
-- include slot_moves
local answer, budget, k, a = {}, tonumber(ARGV[2]), 1, 3

local function recover(slot, before, reason, held)
  local fold, lua = string.match(redis.call('HGET', slot.own, 'fold') or 'latest\n', '^(%l+)\n(.*)$')
  local moved, skipped = 0, 0
  while budget > 0 do
    local page = redis.call(
      'ZRANGEBYSCORE', slot.prepare, '-inf', before, 'WITHSCORES', 'LIMIT', skipped, math.min(budget, 200))
    if #page == 0 then return moved, 0 end
    for i = 1, #page, 2 do
      local member, left = page[i], math.min(math.floor(tonumber(page[i + 1])) % 1000, 16)
      if held[member] then
        skipped = skipped + 1
      else
        moved, budget = moved + 1, budget - 1
        if left > 0 then
          roll_back(slot, member, left, ARGV[1], reason, fold, lua)
        else
          bury(slot, member, ARGV[1], reason == '' and '""' or reason, fold, lua)
        end
      end
    end
  end
  return moved, 1
end

while a <= #ARGV and budget > 0 do
  local slot, epoch, held, n = slot_at(k), tonumber(ARGV[a + 2]), {}, tonumber(ARGV[a + 5])
  local fence, moved, more = tonumber(redis.call('HGET', slot.own, 'epoch') or -1), -1, 0
  if fence <= epoch then
    if fence == epoch then
      for i = a + 6, a + 5 + n do held[ARGV[i]] = true end
    end
    moved, more = recover(slot, fence < epoch and '+inf' or ARGV[a + 3], ARGV[a + 4], held)
    if fence < epoch and more == 0 then redis.call('HSET', slot.own, 'epoch', ARGV[a + 2]) end
    wake(ARGV[a], slot.store, slot.prepare, slot.own, ARGV[a + 1] == '1')
  end
  answer[#answer + 1] = {moved, more}
  k, a = k + KEYS_OF_SLOT, a + 6 + n
end
publish()
return answer
