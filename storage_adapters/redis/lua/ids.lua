-- Part of put and lane_add: the ids of publishes that a group remembers, so that a repeat stores nothing twice.

local server_ms -- read once, so that all ids of a call are judged alike
local function now_ms()
  if not server_ms then
    local now = redis.call('TIME')
    server_ms = now[1] * 1000 + math.floor(now[2] / 1000)
  end
  return server_ms
end

local function is_remembered(ids, id)
  local until_ms = redis.call('ZSCORE', ids, id)
  return until_ms and tonumber(until_ms) > now_ms()
end

-- Remember an id; forget two whose time is over, so that no call has much to forget.
local function remember(ids, id, for_ms)
  local old = redis.call('ZRANGEBYSCORE', ids, '-inf', now_ms(), 'LIMIT', 0, 2)
  if #old > 0 then redis.call('ZREM', ids, unpack(old)) end
  redis.call('ZADD', ids, string.format('%.0f', now_ms() + for_ms), id)
end

-- Let the key go when its last id is forgotten.
local function expire_ids(ids, for_ms)
  redis.call('PEXPIRE', ids, math.max(redis.call('PTTL', ids), for_ms))
end
