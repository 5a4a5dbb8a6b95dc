-- Part of put and lane_add: the ids of publishes that a group remembers, so that a repeat stores nothing twice.

local AT_ONCE = 1000 -- ids; Lua's stack ends at about 8,000 values

local server_ms -- read once, so that all ids of a call are judged alike
local function now_ms()
  if not server_ms then
    local now = redis.call('TIME')
    server_ms = now[1] * 1000 + math.floor(now[2] / 1000)
  end
  return server_ms
end

-- The places, from 1 on, of those of `count` ids in `all`, from the place `first` on, that the group does not remember,
-- each id once.
local function fresh_places(ids, all, first, count)
  local fresh, seen = {}, {}
  for start = 0, count - 1, AT_ONCE do
    local stop = math.min(start + AT_ONCE, count)
    local scores = redis.call('ZMSCORE', ids, unpack(all, first + start, first + stop - 1))
    for i = start + 1, stop do
      local id, until_ms = all[first + i - 1], scores[i - start]
      if not seen[id] and not (until_ms and tonumber(until_ms) > now_ms()) then
        seen[id] = true
        fresh[#fresh + 1] = i
      end
    end
  end
  return fresh
end

-- Remember these ids; forget up to twice as many whose time is over, so that no call has much to forget. The key goes
-- when its last id is forgotten.
local function remember(ids, names, for_ms)
  if #names == 0 then return end
  local old = redis.call('ZRANGEBYSCORE', ids, '-inf', now_ms(), 'LIMIT', 0, math.min(2 * #names, AT_ONCE))
  if #old > 0 then redis.call('ZREM', ids, unpack(old)) end
  local until_ms = string.format('%.0f', now_ms() + for_ms)
  for start = 1, #names, AT_ONCE do
    local pairs_ = {}
    for i = start, math.min(start + AT_ONCE - 1, #names) do
      pairs_[#pairs_ + 1] = until_ms
      pairs_[#pairs_ + 1] = names[i]
    end
    redis.call('ZADD', ids, unpack(pairs_))
  end
  redis.call('PEXPIRE', ids, math.max(redis.call('PTTL', ids), for_ms))
end
