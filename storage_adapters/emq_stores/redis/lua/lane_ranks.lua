-- Part of the lane scripts: the two orders in which entries wait, by due time and by priority and due time.
local SPAN = 562949953421312 -- 2^49

local function wait(waiting, ranks, id, priority, due)
  redis.call('ZADD', waiting, due, id)
  redis.call('ZADD', ranks, priority * SPAN + math.max(0, math.min(due, SPAN - 1)), id)
end
