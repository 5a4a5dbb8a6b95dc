-- Part of the slot scripts: EMQ's members in prepare. The slot's own hash has their number (`mine`; "" once EMQ is not
-- sure of it) and the second of EMQ's last claim (`claimed`). Other programs claim under the same key with the same
-- kind of stamp. Their members may go back only after the time-out.

-- Note that EMQ's members have left prepare. `sure`: all of them were there, and none was another program's.
local function have_left(own, mine, moved, sure)
  if not mine or mine == '' then return end
  if not sure or not string.match(mine, '^%d+$') or #mine > 15 then
    redis.call('HSET', own, 'mine', '')
  elseif moved > 0 then
    redis.call('HINCRBY', own, 'mine', -moved)
  end
end

-- True if EMQ claimed all members in prepare that do not rest, as far as it can tell. Resting members have later
-- stamps.
local function all_mine(prepare, rests, mine, claimed)
  mine = whole(mine)
  if not mine or mine ~= redis.call('ZCARD', prepare) - redis.call('ZCARD', rests) then return false end
  return redis.call('ZCOUNT', prepare, '-inf', string.format('(%.0f', highest(claimed, 0) + 1000)) == mine
end
