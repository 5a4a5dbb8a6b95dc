#!lua flags=allow-oom
-- Take members that may run from many slots: store -> prepare. Arm each slot with the score of its next member.
-- Allowed on a full server, so that hosts can drain it.
-- KEYS  for each slot: zset store, zset prepare, hash own, hash body, hash preparebody, hash retries,
--       hash history
-- ARGV  1 the claim's second in ms, 2 the claimer's channel, 3 most members in this call, 4 most bytes of members and
--       records; then for each slot: highest first (0/1), bodies apart (0/1), limit, epoch, for kinds by time the latest
--       due time
-- Returns for each slot 0 (stale epoch) or a list: score of the next (nil: none), {member, score ...}, records, the
--       part of the limit that was not tried, retries left of each ({}: their scores give these; below 0: deliveries
--       beyond the retries), history of each ({}: no failures), end of the first rest in ms (nil: none). Once the most
--       members are reached, there are fewer answers than slots, but at least one. O((members + twins) log waiting).
-- include slot_waking
-- include whole
local FIRST_PAGE, PAGE = 16, 128 -- members looked at in one call, however large they turn out to be
local answer, base, budget, bytes = {}, tonumber(ARGV[1]), tonumber(ARGV[3]), tonumber(ARGV[4])
local first_token = string.format('%.0f', base + 16)

-- Return at most `size` members that may run, behind `skipped` twins at the head.
local function head(store, backwards, until_ms, skipped, size)
  if backwards then return redis.call('ZREVRANGE', store, skipped, skipped + size - 1, 'WITHSCORES') end
  return redis.call('ZRANGEBYSCORE', store, '-inf', until_ms, 'WITHSCORES', 'LIMIT', skipped, size)
end

-- Look for twins in prepare: return a score or false for each member of the page, or nil if no member has a twin. If
-- prepare has few members, look these up in the store; that is cheaper than asking for the page's members one by one.
local function twins_of(store, prepare, prepared, page)
  if prepared == 0 then return nil end
  if prepared <= #page and redis.call('ZINTERCARD', 2, store, prepare, 'LIMIT', 1) == 0 then return nil end
  local members, n = {}, 0
  for i = 1, #page, 2 do
    n = n + 1
    members[n] = page[i]
  end
  return redis.call('ZMSCORE', prepare, unpack(members))
end

-- Return the page without the members that have twins.
local function without(page, twins)
  local rest, n = {}, 0
  for i = 1, #page, 2 do
    if not twins[(i + 1) / 2] then
      rest[n + 1], rest[n + 2] = page[i], page[i + 1]
      n = n + 2
    end
  end
  return rest
end

-- Drop a page's members from the store. Drop them by rank if they stand in one run; that spares a search for each.
local function remove(store, backwards, skipped, members, n, whole)
  if not whole then
    redis.call('ZREM', store, unpack(members))
  elseif backwards then
    redis.call('ZREMRANGEBYRANK', store, -skipped - n, -skipped - 1)
  else
    redis.call('ZREMRANGEBYRANK', store, skipped, skipped + n - 1)
  end
end

-- Cut the page to as many members as the call may still return, in bytes.
local function fitting(page, body)
  for i = 1, #page, 2 do
    bytes = bytes - #page[i] - (body and redis.call('HSTRLEN', body, page[i]) or 0)
    if bytes <= 0 then
      for j = #page, i + 2, -1 do page[j] = nil end
      break
    end
  end
  return page
end

local function move_bodies(body, preparebody, members, records)
  local found, fields = redis.call('HMGET', body, unpack(members)), {}
  for i = 1, #members do
    records[#records + 1] = found[i]
    if found[i] then
      fields[#fields + 1] = members[i]
      fields[#fields + 1] = found[i]
    end
  end
  if #fields > 0 then
    redis.call('HSET', preparebody, unpack(fields))
    redis.call('HDEL', body, unpack(members))
  end
end

-- Prepare a page's members, and return the members alone. If the slot notes failures, append each member's retries left
-- to `lefts`, and its history to `histories`.
local function prepare_all(prepare, page, retries, history, lefts, histories)
  local tokens, members, n, noted = {}, {}, 0, nil
  if retries then
    for i = 1, #page, 2 do members[#members + 1] = page[i] end
    noted = redis.call('HMGET', retries, unpack(members))
    for _, lines in ipairs(redis.call('HMGET', history, unpack(members))) do histories[#histories + 1] = lines end
  end
  local first = not noted and math.min(tonumber(page[2]), tonumber(page[#page])) > 16 -- in order, so all of them are
  for i = 1, #page, 2 do
    local token = first_token
    if not first and tonumber(page[i + 1]) <= 16 then
      token = string.format('%.0f', base + math.max(math.floor(tonumber(page[i + 1])) - 1, 0))
    end
    n = n + 1
    if noted then
      local left = tonumber(token) - base
      local was = noted[n] and tonumber(noted[n])
      if was and was > -2 ^ 31 and was <= 16 then left = math.min(left, math.floor(was) - 1) end -- else damaged
      lefts[#lefts + 1], token = left, string.format('%.0f', base + math.max(left, 0))
    end
    members[n], tokens[i], tokens[i + 1] = page[i], token, page[i]
  end
  redis.call('ZADD', prepare, unpack(tokens))
  return members
end

local function take(k, backwards, apart, limit, until_ms)
  local store, prepare = KEYS[k], KEYS[k + 1]
  local prepared, skipped, taken, records, lefts, histories = redis.call('ZCARD', prepare), 0, {}, {}, {}, {}
  local retries = redis.call('EXISTS', KEYS[k + 5]) == 1 and KEYS[k + 5]
  local size = FIRST_PAGE
  while limit > 0 and bytes > 0 do
    local page = head(store, backwards, until_ms, skipped, math.min(limit, size))
    local found = #page
    if found == 0 then break end
    local twins = twins_of(store, prepare, prepared, page)
    local free = fitting(twins and without(page, twins) or page, apart and KEYS[k + 3])
    if #free > 0 then
      local members = prepare_all(prepare, free, retries, KEYS[k + 6], lefts, histories)
      remove(store, backwards, skipped, members, #members, #free == found)
      if apart then move_bodies(KEYS[k + 3], KEYS[k + 4], members, records) end
      if #taken == 0 then
        taken = free
      else
        for i = 1, #free do taken[#taken + 1] = free[i] end
      end
    end
    limit, skipped, size = limit - #free / 2, skipped + (found - #free) / 2, math.min(PAGE, size * 4)
  end
  return taken, records, prepared, lefts, histories
end

-- Return the number of members in prepare that EMQ claimed, after this claim; see slot_mine.
local function mine_now(before, mine, taken)
  if before == 0 then return taken end
  mine = mine and whole(mine)
  return mine and mine + taken or ''
end

for s = 0, (#ARGV - 4) / 5 - 1 do
  if budget <= 0 then break end
  local k, a = s * 7 + 1, s * 5 + 5
  local backwards, own = ARGV[a] == '1', KEYS[k + 2]
  local wanted, epoch = tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
  local owned = redis.call('HMGET', own, 'epoch', 'mine', 'claimed', 'rest')
  if highest(owned[1], -1) > epoch then
    answer[s + 1] = 0
  else
    local limit = math.min(wanted, budget)
    local taken, records, before, lefts, histories = take(k, backwards, ARGV[a + 1] == '1', limit, ARGV[a + 4])
    local next_score = following(KEYS[k], KEYS[k + 1], backwards)
    redis.call(
      'HSET', own, 'epoch', ARGV[a + 3], 'armed', next_score or '', 'channel', ARGV[2],
      'mine', mine_now(before, owned[2], #taken / 2),
      'claimed', string.format('%.0f', math.max(#taken > 0 and base or 0, highest(owned[3], 0))))
    local untried = #taken / 2 == limit and wanted - limit or 0
    answer[s + 1] = {next_score or false, taken, records, untried, lefts, histories, owned[4]}
    budget = budget - #taken / 2
  end
end
return answer
