#!lua flags=allow-oom
-- Let prepared entries wait again, unchanged: those of lower epochs, and those claimed before a given time.
-- KEYS  1 hash fence, then for each lane: zset waiting, zset ranks, hash prepared
-- ARGV  1 claimed before (ms; -1: by epoch only), then for each lane: lane, epoch
-- Returns for each lane how many entries wait again (-1: stale epoch). O(prepared).
-- include whole
-- include lane_ranks
local answer = {}

local function recover(waiting, ranks, prepared, epoch)
  local entries, moved = redis.call('HGETALL', prepared), 0
  for i = 1, #entries, 2 do
    local claimed_under, claimed_ms, due_ms, priority = string.match(entries[i + 1], '^(%S+) (%S+) (%S+) (%S+)$')
    if not (whole(claimed_under) and whole(claimed_ms) and whole(due_ms) and whole(priority)) then
      claimed_under, claimed_ms, due_ms, priority = -1, 0, 0, 0 -- nothing that EMQ wrote: it waits again
    end
    if tonumber(claimed_under) < epoch or tonumber(claimed_ms) < tonumber(ARGV[1]) then
      wait(waiting, ranks, entries[i], priority, due_ms) -- first, should a key be damaged
      redis.call('HDEL', prepared, entries[i])
      moved = moved + 1
    end
  end
  return moved
end

for s = 1, (#KEYS - 1) / 3 do
  local lane, epoch = ARGV[s * 2], tonumber(ARGV[s * 2 + 1])
  local fence = highest(redis.call('HGET', KEYS[1], lane), -1)
  if fence > epoch then
    answer[s] = -1
  else
    if fence < epoch then redis.call('HSET', KEYS[1], lane, ARGV[s * 2 + 1]) end
    answer[s] = recover(KEYS[s * 3 - 1], KEYS[s * 3], KEYS[s * 3 + 1], epoch)
  end
end
return answer
