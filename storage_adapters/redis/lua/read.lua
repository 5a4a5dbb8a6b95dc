#!lua flags=allow-oom
-- Read many queues from given offsets; arm those whose tail was reached, so that the next put wakes the reader.
-- KEYS  1 hash tail, 2 hash armed, 3 hash fence (group -> highest epoch seen), 4 zset woken, then a stream each
-- ARGV  1 the reader's channel, 2 most bytes of bodies; then for each queue: queue, group, start, limit, epoch
-- Returns for each queue 0 (stale epoch), or {next, exhausted (0/1), first offset, bodies ...} where the offsets are
--       dense, or {next, exhausted, {offsets}, bodies ...} where they are not. O(messages + queues).
local answer, budget = {}, tonumber(ARGV[2])
local exhausted, at, armed, heard = {}, {}, {}, {}
local groups = {}
for a = 4, #ARGV, 5 do groups[#groups + 1] = ARGV[a] end
local fences = redis.call('HMGET', KEYS[3], unpack(groups))
for q = 1, #KEYS - 4 do
  local a = q * 5 - 2
  local start, limit, epoch, fence = tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4]), fences[q]
  fence = fence and tonumber(fence) or -1
  if fence < epoch then redis.call('HSET', KEYS[3], ARGV[a + 1], ARGV[a + 4]) end
  if fence > epoch then
    answer[q] = 0
  elseif budget <= 0 then
    answer[q] = {start, 0, start}
  else
    local found = redis.call('XRANGE', KEYS[q + 4], '0-' .. ARGV[a + 2], '+', 'COUNT', limit)
    local n, size = #found, 0
    local ends = n < limit
    local reply = {start, 0, start}
    for i = 1, n do
      local body = found[i][2][2]
      reply[i + 3] = body
      size = size + #body
      if size >= budget and i < n then
        n, ends = i, false
        break
      end
    end
    budget = budget - size
    if n > 0 then
      local first, last = tonumber(string.sub(found[1][1], 3)), tonumber(string.sub(found[n][1], 3))
      reply[1], reply[3] = last + 1, first
      if last - first + 1 ~= n then
        local offsets = {}
        for i = 1, n do offsets[i] = tonumber(string.sub(found[i][1], 3)) end
        reply[3] = offsets
      end
    end
    if ends then
      local i = #exhausted + 1
      exhausted[i], at[i] = ARGV[a], reply
      armed[i * 2 - 1], armed[i * 2] = ARGV[a], ARGV[1]
      heard[i] = ARGV[1] .. '\n' .. ARGV[a]
    end
    answer[q] = reply
  end
end
if #exhausted > 0 then
  -- What is missing below the tail was trimmed or recalled: a put is atomic, so nothing is still under way.
  for i, tail in ipairs(redis.call('HMGET', KEYS[1], unpack(exhausted))) do
    at[i][1] = math.max(at[i][1], (tail and tonumber(tail) or 0) + 1)
    at[i][2] = 1
  end
  redis.call('HSET', KEYS[2], unpack(armed))
  redis.call('ZREM', KEYS[4], unpack(heard))
end
return answer
