-- Part of the slot scripts: EMQ's members in prepare. The slot's own hash counts those that EMQ claimed (`mine`, ""
-- once that is not known for sure) and has the second of its last claim (`claimed`). Other programs claim under the
-- same key with the same kind of stamp; what they run may go back only after the time-out.

-- Members that EMQ claimed have left prepare; `sure`: none is gone that may have been another program's, or missing.
local function have_left(own, mine, moved, sure)
  if not mine or mine == '' then return end
  if not sure or not string.match(mine, '^%d+$') or #mine > 15 then
    redis.call('HSET', own, 'mine', '')
  elseif moved > 0 then
    redis.call('HINCRBY', own, 'mine', -moved)
  end
end

-- Whether all that is in prepare was claimed by EMQ, or rests, as far as can be told. What rests has a later stamp.
local function all_mine(prepare, rests, mine, claimed)
  mine = whole(mine)
  if not mine or mine ~= redis.call('ZCARD', prepare) - redis.call('ZCARD', rests) then return false end
  return redis.call('ZCOUNT', prepare, '-inf', string.format('(%.0f', highest(claimed, 0) + 1000)) == mine
end
