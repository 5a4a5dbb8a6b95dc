#!lua flags=no-writes
-- Return a page of a slot's waiting members in claim order.
-- KEYS  1 zset store, 2 hash body
-- ARGV  1 highest first (0/1), 2 members to skip, 3 most members, 1 to 1,000, 4 most bytes of members and records
-- Returns {{member, score ...}, records}. O(log waiting + page).
local PIECE = 16 -- members looked at in one call, however large they turn out to be
local place, left, bytes = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local members, records, n = {}, {}, 0
while left > 0 and bytes > 0 do
  local size = math.min(left, PIECE)
  local page = redis.call(
    ARGV[1] == '1' and 'ZREVRANGE' or 'ZRANGE', KEYS[1], place, place + size - 1, 'WITHSCORES')
  for i = 1, #page, 2 do
    if bytes <= 0 then break end
    local record = redis.call('HGET', KEYS[2], page[i])
    n = n + 1
    members[n * 2 - 1], members[n * 2], records[n] = page[i], page[i + 1], record
    bytes = bytes - #page[i] - (record and #record or 0)
  end
  if #page < size * 2 then break end
  place, left = place + size, left - size
end
return {members, records}
