#!lua flags=no-writes
-- Return a page of a lane's waiting entries in order of due time and id.
-- KEYS  1 zset waiting, 2 zset ranks, 3 hash bodies
-- ARGV  1, 2 first and last place of the page, counted from 0 (last before first: empty page), 3 most bytes of bodies
-- Returns id, body, due time in ms (as text), priority for each in one flat list. O(log entries + page).
-- include lane_ranks
local answer, bytes = {}, tonumber(ARGV[3])
if tonumber(ARGV[2]) < tonumber(ARGV[1]) then return answer end
local page = redis.call('ZRANGE', KEYS[1], ARGV[1], ARGV[2], 'WITHSCORES')
for i = 1, #page, 2 do
  local body = redis.call('HGET', KEYS[3], page[i])
  answer[#answer + 1] = page[i]
  answer[#answer + 1] = body
  answer[#answer + 1] = page[i + 1]
  answer[#answer + 1] = math.floor(redis.call('ZSCORE', KEYS[2], page[i]) / SPAN)
  bytes = bytes - (body and #body or 0)
  if bytes <= 0 then break end
end
return answer
