-- Part of the log scripts: checks that a message which a queue's owner has seen is still in the queue.

-- True if the offset holds another message or none. Below the head it is false: a dropped message proves nothing.
local function lacks(list, head, offset, digest)
  if offset == '' or tonumber(offset) < head then return false end
  local body = redis.call('LINDEX', list, tonumber(offset) - head)
  return not body or string.sub(redis.sha1hex(string.sub(body, 1, 256)), 1, 12) ~= digest
end
