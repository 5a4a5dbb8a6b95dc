#!lua flags=allow-oom
-- Let prepared entries wait again, unchanged: those of lower epochs, and those claimed before a given time.
-- KEYS  for each lane: zset waiting, zset ranks, hash prepared
-- ARGV  1 claimed before (ms; -1: by epoch only), then an epoch for each lane
-- Returns for each lane how many entries wait again. O(prepared).
-- include whole
-- include lane_ranks
local answer = {}
for s = 1, #KEYS / 3 do
  local waiting, ranks, prepared, epoch = KEYS[s * 3 - 2], KEYS[s * 3 - 1], KEYS[s * 3], tonumber(ARGV[s + 1])
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
  answer[s] = moved
end
return answer
