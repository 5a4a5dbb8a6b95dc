#!lua flags=allow-oom
-- Take due entries of many lanes, by priority and due time: waiting -> prepared. Arm each lane with the due time of its
-- next waiting entry.
-- KEYS  1 hash lane_armed, 2 hash fence, 3 zset woken, then for each claim: zset waiting, zset ranks, hash prepared,
--       hash bodies
-- ARGV  1 now in ms, 2 the claimer's channel, 3 most bytes of bodies; then for each claim: lane, limit, epoch, rooms
--       (most entries of each priority, separated by spaces; the last number holds for all lower ones; empty: no bound)
-- Returns for each claim 0 (stale epoch) or {next due in ms (-1: none), 1 if the lane is empty, id, body, ...}.
-- O((claimed + priorities) log entries).
-- include whole
-- include lane_ranks
local PIECE = 1000 -- entries in one call; Lua unpacks some thousands
local answer = {}
local now = tonumber(ARGV[1])
local upto = math.min(now, SPAN - 1)
local budget = tonumber(ARGV[3])

-- Take up to `count` due entries of one priority. Append ids and bodies to `reply`; return the number of entries.
local function take(priority, count, epoch, reply, waiting, ranks, prepared, bodies)
  local first, taken = priority * SPAN, 0
  while taken < count and budget > 0 do
    local asked = math.min(count - taken, PIECE)
    local due = redis.call('ZRANGEBYSCORE', ranks, first, first + upto, 'WITHSCORES', 'LIMIT', 0, asked)
    local ids, claims = {}, {}
    for i = 1, #due, 2 do
      if budget <= 0 then break end
      budget = budget - redis.call('HSTRLEN', bodies, due[i])
      ids[#ids + 1] = due[i]
      claims[i] = due[i]
      claims[i + 1] = string.format('%s %s %.0f %d', epoch, ARGV[1], due[i + 1] - first, priority)
    end
    if #ids == 0 then break end
    -- Prepare the entries before they leave waiting: after damage to a key, each is in one of the two, or in both.
    local found = redis.call('HMGET', bodies, unpack(ids))
    redis.call('HSET', prepared, unpack(claims))
    redis.call('ZREM', waiting, unpack(ids))
    redis.call('ZREM', ranks, unpack(ids))
    for i, body in ipairs(found) do
      reply[#reply + 1] = ids[i]
      reply[#reply + 1] = body
    end
    taken = taken + #ids
    if #ids < asked then break end
  end
  return taken
end

for c = 0, (#ARGV - 3) / 4 - 1 do
  local lane, left, epoch, told = unpack(ARGV, 4 + c * 4, 7 + c * 4)
  local waiting, ranks, prepared, bodies = unpack(KEYS, 4 + c * 4, 7 + c * 4)
  local fence = highest(redis.call('HGET', KEYS[2], lane), -1)
  if fence > tonumber(epoch) then
    answer[c + 1] = 0
  else
    if fence < tonumber(epoch) then redis.call('HSET', KEYS[2], lane, epoch) end
    local reply, rooms, priority = {-1, 0}, {}, 0
    for room in string.gmatch(told, '%d+') do rooms[#rooms + 1] = tonumber(room) end
    left = tonumber(left)
    local following = redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')[2]
    while left > 0 and budget > 0 and following and tonumber(following) <= now do
      -- Go to the next priority that has entries.
      local any = redis.call('ZRANGEBYSCORE', ranks, priority * SPAN, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
      if not any[1] then break end
      priority = math.floor(any[2] / SPAN)
      local place = math.min(priority + 1, #rooms)
      local room = math.min(left, rooms[place] or left)
      if room > 0 then
        local taken = take(priority, room, epoch, reply, waiting, ranks, prepared, bodies)
        left = left - taken
        if rooms[place] then rooms[place] = rooms[place] - taken end
      end
      priority = priority + 1
    end
    if #reply > 2 then following = redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')[2] end
    if following then
      reply[1] = tonumber(following)
    elseif redis.call('EXISTS', bodies, prepared) == 0 then
      reply[2] = 1
    end
    redis.call('HSET', KEYS[1], lane, (following or '9007199254740991') .. ' ' .. ARGV[2])
    redis.call('ZREM', KEYS[3], ARGV[2] .. '\n' .. lane)
    answer[c + 1] = reply
  end
end
return answer
