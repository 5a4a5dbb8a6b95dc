#!lua flags=allow-oom
-- Let members wait again whose rest has ended. Then roll back the members in prepare that were claimed before a given
-- time. If EMQ claimed all members in prepare, roll back all of its claims under a new epoch, or if the caller asks for
-- it. Retries left become the score; members without retries die. Wake armed slots. Allowed on a full server.
-- KEYS  for each slot: as for slot_settle
-- ARGV  1 now in ms, 2 most members in this call (each 16 KiB of a body counts as one more); then for each slot:
--       address, highest first (0/1), epoch, claimed before (ms; "-inf": no members by time), also EMQ's later claims
--       (0/1), reason (JSON; "": none), number of members to leave, those members
-- Returns for each slot {members moved (-1: stale epoch), more are left (0/1)}. A new epoch counts once none are left.
--       Once the most members are reached, there are fewer answers than slots, but at least one.
--       O(members log members + bytes).
-- include slot_waking
-- include slot_folds
-- include slot_moves
-- include whole
-- include slot_mine
local PIECE = 32 -- members looked at in one call, however large they turn out to be
local answer, budget, k, a = {}, tonumber(ARGV[2]), 1, 3

-- Roll back members with a stamp below `before`; leave those in `held`, and resting ones from stamp `timed` on.
-- Return how many of the moved members did not rest, and whether more are left (0/1).
local function recover(slot, before, timed, reason, held, fold, lua)
  local moved, skipped, some_rest = 0, 0, redis.call('EXISTS', slot.rests) == 1
  while budget > 0 do
    local page = redis.call(
      'ZRANGEBYSCORE', slot.prepare, '-inf', before, 'WITHSCORES', 'LIMIT', skipped, math.min(budget, PIECE))
    if #page == 0 then return moved, 0 end
    for i = 1, #page, 2 do
      if budget <= 0 then return moved, 1 end
      local member, token = page[i], tonumber(page[i + 1])
      local rests, left = some_rest and redis.call('ZSCORE', slot.rests, member), math.min(math.floor(token) % 1000, 16)
      if held[member] or rests and token >= timed then
        skipped = skipped + 1
      else
        moved = moved + (rests and 0 or 1)
        budget = budget - 1 - math.floor(redis.call('HSTRLEN', slot.preparebody, member) / 16384)
        if left > 0 then
          roll_back(slot, member, left, ARGV[1], reason, fold, lua)
        else
          bury(slot, member, ARGV[1], reason == '' and '""' or reason, fold, lua)
        end
        if rests then forget_rest(slot, member) end
      end
    end
  end
  return moved, 1
end

-- Return the bound "(<ms>" as a number; below all numbers if there is no bound by time.
local function exclusive(bound)
  return bound == '-inf' and -math.huge or tonumber(string.sub(bound, 2))
end

while a <= #ARGV and budget > 0 do
  local slot, epoch, held, n = slot_at(k), tonumber(ARGV[a + 2]), {}, tonumber(ARGV[a + 6])
  local owned = redis.call('HMGET', slot.own, 'epoch', 'mine', 'claimed')
  local fence, moved, more = highest(owned[1], -1), -1, 0
  if fence <= epoch then
    if fence == epoch then
      for i = a + 7, a + 6 + n do held[ARGV[i]] = true end
    end
    local fold, lua = string.match(redis.call('HGET', slot.own, 'fold') or 'latest\n', '^(%l+)\n(.*)$')
    if not fold then fold, lua = 'latest', '' end -- damaged
    budget = budget - wake_rested(slot, ARGV[1], budget, fold, lua)
    local mine, timed = all_mine(slot.prepare, slot.rests, owned[2], owned[3]), exclusive(ARGV[a + 3])
    local before = timed
    if mine and (fence < epoch or ARGV[a + 4] == '1') then before = math.max(timed, highest(owned[3], 0) + 1000) end
    before = before == -math.huge and '-inf' or string.format('(%.0f', before)
    moved, more = recover(slot, before, timed, ARGV[a + 5], held, fold, lua)
    note_first_rest(slot)
    have_left(slot.own, owned[2], moved, mine or moved == 0)
    if fence < epoch and more == 0 then redis.call('HSET', slot.own, 'epoch', ARGV[a + 2]) end
    wake(ARGV[a], slot.store, slot.prepare, slot.own, ARGV[a + 1] == '1')
  end
  answer[#answer + 1] = {moved, more}
  k, a = k + KEYS_OF_SLOT, a + 7 + n
end
publish()
return answer
