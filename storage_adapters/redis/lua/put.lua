#!lua
-- Append messages to streams, assigning dense offsets; wake the owners of armed queues.
-- KEYS  1 hash tail (queue -> last offset), 2 hash armed (queue -> channel), 3 set sealed, 4 zset woken,
--       then for each put: its stream, and its group's streams where max_length is set
-- ARGV  for each put: queue, number of bodies, max_length (-1: none), drop_oldest (0/1),
--       number of sibling keys, bodies ...
-- Returns for each put its first offset, or -1 (sealed), -2 (full). Refuses as a whole when memory is full (OOM).
-- O(messages).
local answer, woken, channels = {}, {}, {}
local key, arg = 5, 1
while arg <= #ARGV do
  local queue, count, max_length = ARGV[arg], tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2])
  local drop, siblings = ARGV[arg + 3] == '1', tonumber(ARGV[arg + 4])
  local stream, first = KEYS[key], nil
  arg = arg + 5
  if redis.call('SISMEMBER', KEYS[3], queue) == 1 then
    first = -1
  elseif max_length >= 0 then
    local length = 0
    for i = 1, siblings do length = length + redis.call('XLEN', KEYS[key + i]) end
    local excess = length + count - max_length
    if excess > 0 and (not drop or excess > redis.call('XLEN', stream)) then
      first = -2
    elseif excess > 0 then
      redis.call('XTRIM', stream, 'MAXLEN', '=', redis.call('XLEN', stream) - excess)
    end
  end
  if not first then
    local last = redis.call('HINCRBY', KEYS[1], queue, count)
    first = last - count + 1
    for i = 0, count - 1 do
      redis.call('XADD', stream, string.format('0-%.0f', first + i), 'm', ARGV[arg + i])
    end
    local channel = redis.call('HGET', KEYS[2], queue)
    if channel then
      redis.call('HDEL', KEYS[2], queue)
      redis.call('ZADD', KEYS[4], 0, channel .. '\n' .. queue)
      if not woken[channel] then
        woken[channel] = {}
        channels[#channels + 1] = channel
      end
      table.insert(woken[channel], queue)
    end
  end
  answer[#answer + 1] = first
  key, arg = key + 1 + siblings, arg + count
end
for _, channel in ipairs(channels) do
  redis.call('PUBLISH', channel, table.concat(woken[channel], '\n'))
end
return answer
