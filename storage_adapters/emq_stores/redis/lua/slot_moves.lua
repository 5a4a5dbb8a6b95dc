-- Part of the slot scripts: moves of single members that failed. Needs slot_folds.
local KEYS_OF_SLOT = 12

local function slot_at(k)
  return {
    store = KEYS[k], prepare = KEYS[k + 1], dead = KEYS[k + 2], own = KEYS[k + 3], body = KEYS[k + 4],
    preparebody = KEYS[k + 5], deadbody = KEYS[k + 6], reason = KEYS[k + 7], history = KEYS[k + 8],
    retries = KEYS[k + 9], rests = KEYS[k + 10], restscores = KEYS[k + 11],
  }
end

-- Join two texts of history lines, and keep the last 16 lines.
local function joined(before, lines)
  local text = before and before .. '\n' .. lines or lines
  local _, breaks = string.gsub(text, '\n', '\n')
  for _ = 16, breaks do text = string.sub(text, string.find(text, '\n', 1, true) + 1) end
  return text
end

-- Append lines to a member's history.
local function remember(slot, member, lines)
  redis.call('HSET', slot.history, member, joined(redis.call('HGET', slot.history, member), lines))
end

-- Return the attempts of a dead member; the last one is the attempt of which it died.
local function attempts(slot, member, died)
  local reason, before = string.match(redis.call('HGET', slot.reason, member) or '""', '^([^\n]*)\n?(.*)$')
  before = before ~= '' and before or nil
  if reason == '""' then return before end
  -- Another program may have written the time of death; at times the server writes a time with an exponent.
  return joined(before, string.format('%.0f %s', math.min(math.max(tonumber(died), 0), 9007199254740991), reason))
end

-- prepare -> dead. The history so far goes behind the reason. The attempts of a dead twin come before the history, and
-- its body is folded in. If the fold fails, the reason says so.
local function bury(slot, member, now, reason, fold, lua)
  local history = redis.call('HGET', slot.history, member)
  local record = redis.call('HGET', slot.preparebody, member)
  local died = redis.call('ZSCORE', slot.dead, member)
  if died then
    local both, why = together(fold, lua, redis.call('HGET', slot.deadbody, member), record)
    if why then
      reason = string.sub(reason, 1, -2)
        .. string.sub(cjson.encode('; the earlier body could not be folded in: ' .. why), 2)
    else
      record = both
    end
    local before = attempts(slot, member, died)
    if before then history = history and joined(before, history) or before end
  end
  redis.call('HSET', slot.reason, member, history and reason .. '\n' .. history or reason)
  redis.call('ZADD', slot.dead, now, member) -- before it leaves prepare, should a key be damaged
  redis.call('ZREM', slot.prepare, member)
  redis.call('HDEL', slot.history, member)
  redis.call('HDEL', slot.retries, member)
  if record then
    redis.call('HSET', slot.deadbody, member, record)
    redis.call('HDEL', slot.preparebody, member)
  end
end

-- Let a prepared or dead member wait, and merge it into its twin if that waits. If the merge fails, return the reason.
local function wait_again(slot, member, score, bodies, fold, lua)
  local record, why = redis.call('HGET', bodies, member), nil
  if redis.call('ZSCORE', slot.store, member) then
    if record then record, why = together(fold, lua, record, redis.call('HGET', slot.body, member)) end
    if why then return why end
  else
    redis.call('ZADD', slot.store, score, member)
  end
  if record then
    redis.call('HSET', slot.body, member, record)
    redis.call('HDEL', bodies, member)
  end
end

-- Remember the lowest number of retries with which a member was put back, whatever score it gets later.
local function note_retries(slot, member, score)
  score = tonumber(score)
  if score > 16 then return end
  local before = tonumber(redis.call('HGET', slot.retries, member) or 16)
  if not (before and before >= 0 and before <= 16) then before = 16 end -- damaged
  redis.call('HSET', slot.retries, member, string.format('%d', math.max(math.min(math.floor(score), before), 0)))
end

-- Remember a failed attempt of a member that had `left` retries. It takes one retry more, also below 0.
local function note_failed(slot, member, left)
  local before = tonumber(redis.call('HGET', slot.retries, member) or nil)
  if before then left = math.min(left, math.floor(before) - 1) end
  redis.call('HSET', slot.retries, member, string.format('%d', left))
end

-- prepare -> store, with one more failed attempt in the history. A member that cannot be folded with its twin dies.
local function roll_back(slot, member, score, now, reason, fold, lua)
  if reason ~= '' then remember(slot, member, now .. ' ' .. reason) end
  local why = wait_again(slot, member, score, slot.preparebody, fold, lua)
  if why then
    bury(slot, member, now, cjson.encode(why), fold, lua)
  else
    redis.call('ZREM', slot.prepare, member)
    note_retries(slot, member, score)
  end
end

-- Keep the end of the first rest in the slot's own hash, so that a claim need not search for it.
local function note_first_rest(slot)
  local first = redis.call('ZRANGE', slot.rests, 0, 0, 'WITHSCORES')[2]
  if first then
    redis.call('HSET', slot.own, 'rest', first)
  else
    redis.call('HDEL', slot.own, 'rest')
  end
end

-- Let a prepared member rest. Its stamp is the second after its rest, so other programs leave it alone until then.
local function rest(slot, member, left, score, rest_ms)
  note_failed(slot, member, left)
  redis.call('HSET', slot.restscores, member, score)
  redis.call('ZADD', slot.rests, rest_ms, member)
  redis.call('ZADD', slot.prepare, string.format('%.0f', (math.floor(rest_ms / 1000) + 1) * 1000 + left), member)
  note_first_rest(slot)
end

local function forget_rest(slot, member)
  redis.call('ZREM', slot.rests, member)
  redis.call('HDEL', slot.restscores, member)
end

-- Let members wait again that have rested long enough, at most `most`; return how many were looked at. If another
-- program has taken a member out of prepare or claimed it since, the member has another stamp and is left alone.
local function wake_rested(slot, now, most, fold, lua)
  local page = redis.call('ZRANGEBYSCORE', slot.rests, '-inf', now, 'WITHSCORES', 'LIMIT', 0, most)
  for i = 1, #page, 2 do
    local member, stamp = page[i], tonumber(redis.call('ZSCORE', slot.prepare, page[i]) or nil)
    if stamp and math.floor(stamp / 1000) == math.floor(tonumber(page[i + 1]) / 1000) + 1 then
      local score = redis.call('HGET', slot.restscores, member)
      local n = tonumber(score or nil)
      if not n or n - n ~= 0 then score = math.min(stamp % 1000, 16) end
      roll_back(slot, member, score, now, '', fold, lua)
    end
    forget_rest(slot, member)
  end
  if #page > 0 then note_first_rest(slot) end
  return #page / 2
end
