#!lua flags=no-writes
-- Find entries of lanes by an identity, or by the id that their publishers chose.
-- KEYS  for each: hash bodies, zset named, zset waiting, zset dead
-- ARGV  1 most entries of each, 2 least characters of a nonce; then for each: id, identity behind which to go on (empty:
--       from the begin)
-- Returns for each a flat list in the order of identities: identity, state ("waiting", "prepared", "dead").
--       O(asked log entries + found + entries of ids that begin with "<id>#").
local PAGE, MOST_PAGES = 1000, 1000

local function add(flat, bodies, waiting, dead, each)
  if redis.call('HEXISTS', bodies, each) == 1 then
    local state = redis.call('ZSCORE', waiting, each) and 'waiting' or redis.call('ZSCORE', dead, each) and 'dead'
    flat[#flat + 1] = each
    flat[#flat + 1] = state or 'prepared'
  end
end

local answer = {}
for i = 0, #KEYS / 4 - 1 do
  local bodies, named, waiting, dead = unpack(KEYS, 1 + i * 4, 4 + i * 4)
  local id, after = unpack(ARGV, 3 + i * 2, 4 + i * 2)
  local flat, from = {}, after > id .. '#' and '(' .. after or '[' .. id .. '#'
  if after < id then add(flat, bodies, waiting, dead, id) end
  for _ = 1, MOST_PAGES do
    local page = redis.call('ZRANGEBYLEX', named, from, '(' .. id .. '$', 'LIMIT', 0, PAGE)
    for _, each in ipairs(page) do
      if #flat >= 2 * ARGV[1] then break end
      local nonce = string.sub(each, #id + 2)
      if #nonce >= tonumber(ARGV[2]) and not string.find(nonce, '[^%w_-]') then
        add(flat, bodies, waiting, dead, each)
      end
    end
    if #page < PAGE or #flat >= 2 * ARGV[1] then break end
    from = '(' .. page[#page]
  end
  answer[i + 1] = flat
end
return answer
