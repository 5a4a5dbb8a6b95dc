#!lua
-- Add entries to lanes, waiting or dead at once. Leave an id that the lane has already. Wake armed lanes.
-- KEYS  1 hash lane_armed (lane -> "due channel"), 2 hash fence, 3 zset woken, 4 set sealed, then for each
--       add: zset waiting, zset ranks, hash bodies, zset dead, hash reasons, zset taken, hash taken_ms, zset ids of the
--       group, zset named
-- ARGV  1 now in ms; then for each add: lane, id, epoch (-1: not fenced), body, due_ms, priority, reason, dead (0/1),
--       since (ms: leave the entry out if it was taken for good at that time or later; empty: never leave it out),
--       ms for which the group remembers the label (0: the group does not look for it), label
-- Returns 1 for each entry that was added, 0 if the lane has it already or its group remembers its label, -1 (stale
--       epoch), -2 (sealed, and not fenced), -3 (taken since). Refuses the whole call when memory is full (OOM), unless
--       the caller allows it. O(adds log entries).
-- include whole
-- include lane_ranks
-- include channel
-- include lane_waking
-- include ids
local answer = {}
for i = 0, (#ARGV - 1) / 11 - 1 do
  local lane, id, epoch, body, due, priority, reason, dead, since, for_ms, label = unpack(ARGV, 2 + i * 11, 12 + i * 11)
  local waiting, ranks, bodies, dead_set, reasons, taken, times, ids, named = unpack(KEYS, 5 + i * 9, 13 + i * 9)
  local new = -1
  if tonumber(epoch) < 0 and redis.call('SISMEMBER', KEYS[4], lane) == 1 then
    new = -2
  elseif tonumber(epoch) < 0 or highest(redis.call('HGET', KEYS[2], lane), -1) <= tonumber(epoch) then
    new = 1 - redis.call('HEXISTS', bodies, id)
  end
  if new == 1 and for_ms ~= '0' and #fresh_places(ids, {label}, 1, 1) == 0 then new = 0 end
  if new == 1 then
    local order = redis.call('ZSCORE', taken, id)
    if order and since ~= '' and tonumber(redis.call('HGET', times, id) or order) >= tonumber(since) then
      new = -3
    elseif order then
      redis.call('ZREM', taken, id)
      redis.call('HDEL', times, id)
    end
  end
  answer[i + 1] = new
  -- The wake-up comes first: if it cannot be kept, the lane stays armed, without the entry. The body comes after all that
  -- belongs to the entry, because the body tells that the entry exists: after damage to a key, the add can be repeated.
  if new == 1 and dead ~= '1' then wake(lane, due) end
  if new == 1 and label ~= id then redis.call('ZADD', named, 0, id) end
  if new == 1 and dead == '1' then
    redis.call('ZADD', dead_set, ARGV[1], id)
    redis.call('HSET', reasons, id, reason)
    redis.call('HSET', bodies, id, body)
  elseif new == 1 then
    wait(waiting, ranks, id, priority, due)
    redis.call('HSET', bodies, id, body)
  end
  -- Not before the entry is there: an add that met a damaged key would be taken for a repeat when it comes again.
  if new == 1 and for_ms ~= '0' then remember(ids, {label}, tonumber(for_ms)) end
end
return answer
