#!lua flags=allow-oom
-- Take members that may run from many slots: store -> prepare. Arm each slot with what may be claimed next.
-- Allowed on a full server, so that it can be drained.
-- KEYS  for each slot: zset store, zset prepare, hash own, hash body, hash preparebody
-- ARGV  1 the claim's second in ms, 2 the claimer's channel, 3 most members in this call; then for each slot: highest
--       first (0/1), bodies apart (0/1), limit, epoch, for kinds by time the latest due time
-- Returns for each slot 0 (stale epoch) or {score of the next (nil: none), {member, score ...}, records, how much of the
--       limit was not tried}; fewer answers than slots, at least one, once the most members are reached. O((members + twins) log waiting).
-- include slot_waking
local answer, base, budget = {}, tonumber(ARGV[1]), tonumber(ARGV[3])
local first_token = string.format('%.0f', base + 16)

-- At most `size` members that may run, behind `skipped` twins at the head.
local function head(store, backwards, until_ms, skipped, size)
  if backwards then return redis.call('ZREVRANGE', store, skipped, skipped + size - 1, 'WITHSCORES') end
  return redis.call('ZRANGEBYSCORE', store, '-inf', until_ms, 'WITHSCORES', 'LIMIT', skipped, size)
end

-- Whether members of the page have twins in prepare: for each a score or false, or nil if none has. Few in prepare are
-- looked up in the store, which is cheaper than asking for the page's members one by one.
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

-- The page without its twins.
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

-- Drop a page's members from the store: by rank if they are all there is between, which spares looking for each.
local function remove(store, backwards, skipped, members, n, whole)
  if not whole then
    redis.call('ZREM', store, unpack(members))
  elseif backwards then
    redis.call('ZREMRANGEBYRANK', store, -skipped - n, -skipped - 1)
  else
    redis.call('ZREMRANGEBYRANK', store, skipped, skipped + n - 1)
  end
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

-- Prepare a page's members; answers them alone.
local function prepare_all(prepare, page)
  local tokens, members, n = {}, {}, 0
  local first = math.min(tonumber(page[2]), tonumber(page[#page])) > 16 -- in order, so all of them are
  for i = 1, #page, 2 do
    local token = first_token
    if not first and tonumber(page[i + 1]) <= 16 then
      token = string.format('%.0f', base + math.max(math.floor(tonumber(page[i + 1])) - 1, 0))
    end
    n = n + 1
    members[n], tokens[i], tokens[i + 1] = page[i], token, page[i]
  end
  redis.call('ZADD', prepare, unpack(tokens))
  return members
end

local function take(k, backwards, apart, limit, until_ms)
  local store, prepare = KEYS[k], KEYS[k + 1]
  local prepared, skipped, taken, records = redis.call('ZCARD', prepare), 0, {}, {}
  while limit > 0 do
    local page = head(store, backwards, until_ms, skipped, math.min(limit, 500))
    if #page == 0 then break end
    local twins = twins_of(store, prepare, prepared, page)
    local free = twins and without(page, twins) or page
    if #free > 0 then
      local members = prepare_all(prepare, free)
      remove(store, backwards, skipped, members, #members, #free == #page)
      if apart then move_bodies(KEYS[k + 3], KEYS[k + 4], members, records) end
      if #taken == 0 then
        taken = free
      else
        for i = 1, #free do taken[#taken + 1] = free[i] end
      end
    end
    limit, skipped = limit - #free / 2, skipped + (#page - #free) / 2
  end
  return taken, records
end

for s = 0, (#ARGV - 3) / 5 - 1 do
  if budget <= 0 then break end
  local k, a = s * 5 + 1, s * 5 + 4
  local backwards, own = ARGV[a] == '1', KEYS[k + 2]
  local wanted, epoch = tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
  local fence = tonumber(redis.call('HGET', own, 'epoch') or -1)
  if fence > epoch then
    answer[s + 1] = 0
  else
    local limit = math.min(wanted, budget)
    local taken, records = take(k, backwards, ARGV[a + 1] == '1', limit, ARGV[a + 4])
    local next_score = following(KEYS[k], KEYS[k + 1], backwards)
    redis.call('HSET', own, 'epoch', ARGV[a + 3], 'armed', next_score or '', 'channel', ARGV[2])
    answer[s + 1] = {next_score or false, taken, records, #taken / 2 == limit and wanted - limit or 0}
    budget = budget - #taken / 2
  end
end
return answer
