-- Part of the slot scripts: finds the next claimable member, and wakes the host that is armed for a later one.
local woken, channels = {}, {}

-- Return the score of the first waiting member without a twin in prepare, or nil if none has.
local function following(store, prepare, backwards)
  local range = backwards and 'ZREVRANGE' or 'ZRANGE'
  local first = redis.call(range, store, 0, 0, 'WITHSCORES')
  if not first[1] or not redis.call('ZSCORE', prepare, first[1]) then return first[2] end
  local prepared = redis.call('ZCARD', prepare)
  for start = 1, prepared, 500 do
    local page = redis.call(range, store, start, math.min(start + 499, prepared), 'WITHSCORES')
    if #page == 0 then return nil end
    local members = {}
    for i = 1, #page, 2 do members[#members + 1] = page[i] end
    local twins = redis.call('ZMSCORE', prepare, unpack(members))
    for i = 1, #members do
      if not twins[i] then return page[i * 2] end
    end
  end
end

-- If the next member to claim comes before the score with which the slot is armed, disarm the slot; note its channel.
local function wake(address, store, prepare, own, backwards)
  local armed, channel = unpack(redis.call('HMGET', own, 'armed', 'channel'))
  local score = channel and following(store, prepare, backwards)
  if not score then return end
  local at, now = tonumber(armed), tonumber(score) -- armed with nothing, it wakes for anything
  if at and not (backwards and now > at or not backwards and now < at) then return end
  redis.call('HDEL', own, 'armed', 'channel')
  if not woken[channel] then
    woken[channel] = {}
    channels[#channels + 1] = channel
  end
  table.insert(woken[channel], address)
end

local function publish()
  for _, channel in ipairs(channels) do
    redis.call('PUBLISH', channel, table.concat(woken[channel], '\n'))
  end
end
