-- Part of the slot scripts: moves of single members that failed. Needs slot_folds.
local KEYS_OF_SLOT = 9

local function slot_at(k)
  return {
    store = KEYS[k], prepare = KEYS[k + 1], dead = KEYS[k + 2], own = KEYS[k + 3], body = KEYS[k + 4],
    preparebody = KEYS[k + 5], deadbody = KEYS[k + 6], reason = KEYS[k + 7], history = KEYS[k + 8],
  }
end

-- Lines of history one behind the other, the last 16 of them.
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

-- The attempts of a member that is dead, the one that it died of being the last.
local function attempts(slot, member, died)
  local reason, before = string.match(redis.call('HGET', slot.reason, member) or '""', '^([^\n]*)\n?(.*)$')
  before = before ~= '' and before or nil
  if reason == '""' then return before end
  -- The time may be a stranger's; the server writes it with an exponent at times.
  return joined(before, string.format('%.0f %s', math.min(math.max(tonumber(died), 0), 9007199254740991), reason))
end

-- prepare -> dead; the history so far goes behind the reason. A dead twin's attempts come before it, its body is folded
-- in; where that fails, the reason says so.
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
  redis.call('ZREM', slot.prepare, member)
  redis.call('ZADD', slot.dead, now, member)
  redis.call('HSET', slot.reason, member, history and reason .. '\n' .. history or reason)
  redis.call('HDEL', slot.history, member)
  if record then
    redis.call('HSET', slot.deadbody, member, record)
    redis.call('HDEL', slot.preparebody, member)
  end
end

-- Let a member wait that was prepared or dead, merging it into its twin if that waits. Returns why that failed, if so.
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

-- prepare -> store, with a failed attempt more in its history; what cannot be folded with its twin is dead.
local function roll_back(slot, member, score, now, reason, fold, lua)
  if reason ~= '' then remember(slot, member, now .. ' ' .. reason) end
  local why = wait_again(slot, member, score, slot.preparebody, fold, lua)
  if why then
    bury(slot, member, now, cjson.encode(why), fold, lua)
  else
    redis.call('ZREM', slot.prepare, member)
  end
end
