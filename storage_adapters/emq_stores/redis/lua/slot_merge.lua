#!lua
-- Add members whose bodies are kept apart to slots. Fold the body of a member that waits already. Wake armed slots.
-- KEYS  for each slot: zset store, zset prepare, hash own, hash body
-- ARGV  for each slot: address, highest first (0/1), the score that a waiting member keeps (see slot_add), most that
--       may wait (-1: any number), fold, its Lua text, number of adds; then score, member, body, note of each
-- Returns for each slot a list: a string with a mark for each add (1 new, 0 merged, 2 no room, 3 not folded, 4 the slot
--       is sealed), and the reason for each mark 3. Refuses the whole call when memory is full (OOM).
--       O(adds log waiting + bytes).
-- include slot_waking
-- include slot_folds
local answer, k, a = {}, 1, 1
while a <= #ARGV do
  local store, body = KEYS[k], KEYS[k + 3]
  local keep, most, fold, lua, n = ARGV[a + 2], tonumber(ARGV[a + 3]), ARGV[a + 4], ARGV[a + 5], tonumber(ARGV[a + 6])
  local count, marks, reply = redis.call('ZCARD', store), {}, {''}
  if redis.call('HGET', KEYS[k + 2], 'fold') ~= fold .. '\n' .. lua then -- for what slot_recover merges
    redis.call('HSET', KEYS[k + 2], 'fold', fold .. '\n' .. lua)
  end
  local sealed = redis.call('HEXISTS', KEYS[k + 2], 'sealed') == 1
  for first = a + 7, sealed and 0 or a + 6 + 4 * n, 1000 do
    local last = math.min(first + 1000, a + 7 + 4 * n) - 1
    local members, waits, records, order, scores = {}, {}, {}, {}, {}
    for i = first, last, 4 do members[#members + 1] = ARGV[i + 1] end
    local found, kept = redis.call('ZMSCORE', store, unpack(members)), redis.call('HMGET', body, unpack(members))
    for i = 1, #members do
      waits[members[i]], records[members[i]] = found[i], kept[i]
    end
    for i = first, last, 4 do
      local member, mark = ARGV[i + 1], 1
      local record, why = packed(1, ARGV[i + 3], ARGV[i + 2]), nil
      if waits[member] then
        mark = 0
        record, why = together(fold, lua, records[member], record)
      elseif most >= 0 and count >= most then
        mark = 2
      end
      if why then
        mark, reply[#reply + 1] = 3, why
      elseif mark < 2 then
        count = count + mark
        waits[member], records[member] = true, record
        order[#order + 1] = member
        scores[#scores + 1] = ARGV[i]
        scores[#scores + 1] = member
      end
      marks[#marks + 1] = mark
    end
    if #order > 0 then
      local fields = {}
      for i = 1, #order do
        fields[i * 2 - 1], fields[i * 2] = order[i], records[order[i]]
      end
      redis.call('HSET', body, unpack(fields))
      if keep ~= '' then table.insert(scores, 1, keep) end
      redis.call('ZADD', store, unpack(scores))
    end
  end
  reply[1] = sealed and string.rep('4', n) or table.concat(marks)
  answer[#answer + 1] = reply
  wake(ARGV[a], store, KEYS[k + 1], KEYS[k + 2], ARGV[a + 1] == '1')
  k, a = k + 4, a + 7 + 4 * n
end
publish()
return answer
