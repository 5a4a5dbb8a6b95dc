#!lua
-- Append messages to queues, assigning dense offsets; wake the owners of armed queues.
-- KEYS  1 hash head (queue -> offset of the list's first element, incarnation), 2 hash armed (queue -> channel),
--       3 set sealed, 4 zset woken, 5 hash layout (queue -> lowest layout that it takes), then for each put: its list,
--       its group's lists where max_length is set, and the zset ids of its group where the put has ids
-- ARGV  1 incarnation of the queues that this call makes, then for each put: queue, number of bodies, max_length (-1: none), drop_oldest (0/1), layout (-1: none), number of
--       sibling keys, ms for which the group remembers the ids (0: the put has none), ids ..., bodies ...
-- Returns for each put its first offset (with ids: a list of this offset and of the places, from 1 on, of the bodies
--       that were left out), or -2 (full), -3 (head damaged), -4 - the layout of the queue (sealed, or
--       the layout of the put is lower).
-- Refuses the whole call when memory is full (OOM). O(messages).
-- include whole
-- include channel
-- include ids
local function lowest_layout(queue) return math.max(0, highest(redis.call('HGET', KEYS[5], queue), 0)) end

local answer, woken, channels = {}, {}, {}
local key, arg = 6, 2
while arg <= #ARGV do
  local queue, count, max_length = ARGV[arg], tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2])
  local drop, layout, siblings = ARGV[arg + 3] == '1', tonumber(ARGV[arg + 4]), tonumber(ARGV[arg + 5])
  local for_ms, list, first = tonumber(ARGV[arg + 6]), KEYS[key], nil
  local head, incarnation = head_of(redis.call('HGET', KEYS[1], queue))
  local ids_key = for_ms > 0 and KEYS[key + siblings + 1]
  local bodies, at, last = ARGV, arg + 7, arg + 6 + count
  local fresh, repeated = {}, {}
  arg = last + 1
  if ids_key then
    bodies, arg = {}, arg + count
    local places = fresh_places(ids_key, ARGV, at, count)
    local n = 1
    for i = 1, count do
      if places[n] == i then
        fresh[n], bodies[n] = ARGV[at + i - 1], ARGV[last + i]
        n = n + 1
      else
        repeated[#repeated + 1] = i
      end
    end
    count, at, last = #bodies, 1, #bodies
  end
  if not head then
    first = -3
  elseif redis.call('SISMEMBER', KEYS[3], queue) == 1 or (layout >= 0 and layout < lowest_layout(queue)) then
    first = -4 - lowest_layout(queue)
  elseif max_length >= 0 and count > 0 then -- a repeat takes no room
    local length = 0
    for i = 1, siblings do length = length + redis.call('LLEN', KEYS[key + i]) end
    local excess = length + count - max_length
    if excess > 0 and (not drop or excess > redis.call('LLEN', list)) then
      first = -2
    elseif excess > 0 then
      redis.call('LTRIM', list, excess, -1)
      head = head + excess
      redis.call('HSET', KEYS[1], queue, as_head(head, incarnation))
    end
  end
  if not first then
    -- First: if the wake-up cannot be kept, since that key is damaged, the owner's queue stays armed and empty.
    local channel = count > 0 and redis.call('HGET', KEYS[2], queue)
    if channel and is_channel(channel, KEYS[1]) then
      redis.call('ZADD', KEYS[4], 0, channel .. '\n' .. queue)
      if not woken[channel] then
        woken[channel] = {}
        channels[#channels + 1] = channel
      end
      table.insert(woken[channel], queue)
    end
    if count > 0 and incarnation == '' then redis.call('HSET', KEYS[1], queue, as_head(head, ARGV[1])) end
    first = head + redis.call('LLEN', list)
    remember(ids_key, fresh, for_ms)
    for i = at, last, 1000 do -- Lua's stack ends at about 8,000 values
      redis.call('RPUSH', list, unpack(bodies, i, math.min(i + 999, last)))
    end
    if channel then redis.call('HDEL', KEYS[2], queue) end
  end
  answer[#answer + 1] = ids_key and {first, unpack(repeated)} or first
  key = key + 1 + siblings + (ids_key and 1 or 0)
end
for _, channel in ipairs(channels) do
  redis.call('PUBLISH', channel, table.concat(woken[channel], '\n'))
end
return answer
