-- Part of the log scripts: checks that a message which a queue's owner has seen is still in the queue.

-- True if the offset holds another message or none. Below the head it is false: a dropped message proves nothing. Also
-- returns the size of what it holds, 0 if that is not known.
local function lacks(list, head, offset, digest)
  if offset == '' or tonumber(offset) < head then return false, 0 end
  local body = redis.call('LINDEX', list, tonumber(offset) - head)
  if not body then return true, 0 end
  return string.sub(redis.sha1hex(string.sub(body, 1, 256)), 1, 12) ~= digest, #body
end
