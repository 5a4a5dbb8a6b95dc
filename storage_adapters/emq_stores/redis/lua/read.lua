#!lua flags=allow-oom
-- Read many queues from given offsets; arm each queue whose tail was reached, so that the next put wakes the reader.
-- Allowed on a full server, so that hosts can drain it.
-- KEYS  1 hash head, 2 hash armed, 3 hash fence (group -> highest epoch seen), 4 zset woken, then each queue's list
-- ARGV  1 the reader's channel, 2 most bytes of bodies, 3 whether the caller waits for a replica (0/1); then for each
--       queue: queue, group, start, limit, epoch (-1 for an observer, who neither fences nor arms), offset and digest
--       of a message that the owner has seen ("" for none)
-- WAIT waits for the caller's own last write. So a call that returns bodies writes something where the caller waits for
-- a replica.
-- Returns for each queue 0 (stale epoch), -1 - tail (the message that the owner has seen is gone), the tail (nothing is
--       there to read; most reads of a host that looks at idle queues), 'damaged' (the head is damaged), or
--       {next, exhausted (0/1), offset of the first body, bodies}.
-- O(messages + queues + nodes of some 8 KiB between a queue's head and the offset where it is read).
-- include mark
-- include whole
-- Bodies loaded first. Their sizes tell how many more the budget has room for; of these, at most three times as many.
-- To load them all would hold up the server for a second where 500 messages of 1 MB wait, to return one.
local PROBE = 16
local answer, budget, touch = {}, tonumber(ARGV[2]), ARGV[3] == '1'
local armed, heard, queues, groups = {}, {}, {}, {}
for a = 4, #ARGV, 7 do
  queues[#queues + 1] = ARGV[a]
  groups[#groups + 1] = ARGV[a + 1]
end
local heads = redis.call('HMGET', KEYS[1], unpack(queues))
local fences = redis.call('HMGET', KEYS[3], unpack(groups))
for q = 1, #queues do
  local a = q * 7 - 3
  local start, limit, epoch = tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4])
  local owner = epoch >= 0
  local fence = highest(fences[q], -1)
  if fence < epoch then redis.call('HSET', KEYS[3], groups[q], ARGV[a + 4]) end
  local head, list = head_of(heads[q]), KEYS[q + 4]
  local lost, size = false, 0
  if owner and head and fence <= epoch then lost, size = lacks(list, head, ARGV[a + 5], ARGV[a + 6]) end
  if not head then
    answer[q] = 'damaged'
  elseif owner and fence > epoch then
    answer[q] = 0
  elseif lost or owner and start > head + redis.call('LLEN', list) then
    answer[q] = -1 - head - redis.call('LLEN', list)
  elseif budget <= 0 or limit <= 0 then
    answer[q] = {start, 0, start, {}}
  else
    local first = math.max(start, head)
    local bodies, n, wanted = {}, 0, math.min(limit, size * PROBE < budget and PROBE or 1)
    repeat
      local more, used = redis.call('LRANGE', list, first - head + n, first - head + n + wanted - 1), 0
      for i = 1, #more do
        if budget <= 0 then break end
        n, bodies[n + 1] = n + 1, more[i]
        used, budget = used + #more[i], budget - #more[i]
      end
      local ended = #more < wanted
      wanted = math.min(limit - n, 3 * n, math.ceil(budget * #more / used))
    until ended or wanted <= 0
    local exhausted = n < limit and first + n >= head + redis.call('LLEN', list)
    answer[q] = exhausted and n == 0 and first or {first + n, exhausted and 1 or 0, first, bodies}
    if touch and owner and n > 0 then
      redis.call('HSET', KEYS[3], groups[q], ARGV[a + 4])
      touch = false
    end
    if exhausted and owner then
      armed[#armed + 1] = queues[q]
      armed[#armed + 1] = ARGV[1]
      heard[#heard + 1] = ARGV[1] .. '\n' .. queues[q]
    end
  end
end
if #heard > 0 then
  redis.call('HSET', KEYS[2], unpack(armed))
  redis.call('ZREM', KEYS[4], unpack(heard))
end
return answer
