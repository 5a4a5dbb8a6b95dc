#!lua flags=allow-oom
-- Acknowledge members: prepare -> gone. Wake slots where a twin may run now. Allowed on a full server.
-- KEYS  for each batch: zset store, zset prepare, hash own, hash preparebody, hash history, hash retries, zset rests
-- ARGV  for each batch, of one slot: address, highest first (0/1), epoch ("": not fenced), the claim's token, number of
--       members, the members
-- Returns for each batch -1 (stale epoch), its number of members if all are acknowledged, or a string with a mark for
--       each member: 1 acknowledged, 0 not in prepare under this token, or resting. O(members log prepared).
-- include slot_waking
-- include whole
-- include slot_mine
local answer, k, a = {}, 1, 1

-- Return the members of ARGV[first..last] that are in prepare under the token and do not rest, each once. Append a mark
-- for each to `marks`. A rest ends later than any claim; but after the clock was set back, its stamp may equal a token.
local function acknowledged(prepare, rests, first, last, token, marks)
  local tokens, acked, seen, wanted = redis.call('ZMSCORE', prepare, unpack(ARGV, first, last)), {}, {}, tonumber(token)
  local some_rest = redis.call('EXISTS', rests) == 1
  for i = 1, #tokens do
    local member, found, mark = ARGV[first + i - 1], tokens[i], 0
    local ours = found and (found == token or tonumber(found) == wanted) and not seen[member]
    if ours and not (some_rest and redis.call('ZSCORE', rests, member)) then
      seen[member], mark = true, 1
      acked[#acked + 1] = member
    end
    marks[#marks + 1] = mark
  end
  return acked
end

local function acknowledge(k, first, last, token, marks)
  local acked = acknowledged(KEYS[k + 1], KEYS[k + 6], first, last, token, marks)
  if #acked > 0 then
    redis.call('ZREM', KEYS[k + 1], unpack(acked))
    if redis.call('EXISTS', KEYS[k + 3], KEYS[k + 4], KEYS[k + 5]) > 0 then
      redis.call('HDEL', KEYS[k + 3], unpack(acked))
      redis.call('HDEL', KEYS[k + 4], unpack(acked))
      redis.call('HDEL', KEYS[k + 5], unpack(acked))
    end
  end
  return #acked
end

while a <= #ARGV do
  local prepare, own, epoch, token, n = KEYS[k + 1], KEYS[k + 2], ARGV[a + 2], ARGV[a + 3], tonumber(ARGV[a + 4])
  local owned = redis.call('HMGET', own, 'epoch', 'mine')
  if epoch ~= '' and highest(owned[1], -1) > tonumber(epoch) then
    answer[#answer + 1] = -1
  else
    local marks, done = {}, 0
    for first = a + 5, a + 4 + n, 1000 do
      done = done + acknowledge(k, first, math.min(first + 999, a + 4 + n), token, marks)
    end
    have_left(own, owned[2], done, done == n)
    answer[#answer + 1] = done == n and n or table.concat(marks)
    wake(ARGV[a], KEYS[k], prepare, own, ARGV[a + 1] == '1')
  end
  k, a = k + 7, a + 5 + n
end
publish()
return answer
