-- Part of the slot scripts: records of bodies kept apart, "<merged> <bytes of note> <note><body>", and the folds that
-- make one record of two. The folds must agree with emq/storage/folds.py byte for byte.
local chunks = {}

local function packed(merged, note, body)
  return string.format('%d %d ', merged, #note) .. note .. body
end

-- Return the parts of a record; nil for a damaged record.
local function unpacked(record)
  local merged, size, at = string.match(record, '^(%d+) (%d+) ()')
  merged, size = tonumber(merged), tonumber(size)
  if not merged or merged < 1 or merged >= 2 ^ 52 or at + size - 1 > #record then return nil end
  return merged, string.sub(record, at, at + size - 1), string.sub(record, at + size)
end

local function number(text)
  local n = not string.find(text, '[^%d%s+%-.eE]') and tonumber(text) -- no "inf", "nan" or hexadecimal
  if not n or n - n ~= 0 then error(string.format('%q is not a number', string.sub(text, 1, 40)), 0) end
  return n
end

local function written(n)
  if n ~= n then return 'nan' end -- the C library would print a sign
  if n == math.floor(n) and math.abs(n) < 9007199254740992 then return string.format('%d', n) end
  return string.format('%.17g', n)
end

local folds = {
  latest = function(_, newer) return newer end,
  sum = function(older, newer)
    local total = number(older) + number(newer)
    if total - total ~= 0 then error('the sum is beyond the range of a number', 0) end
    return written(total)
  end,
  max = function(older, newer) return number(older) >= number(newer) and older or newer end,
  min = function(older, newer) return number(older) <= number(newer) and older or newer end,
  union = function(older, newer)
    local lines, seen = {}, {}
    for line in string.gmatch(older .. '\n' .. newer, '[^\n]+') do
      if not seen[line] then
        seen[line] = true
        lines[#lines + 1] = line
      end
    end
    return table.concat(lines, '\n')
  end,
}
folds.count = folds.sum

-- A topic's own Lua text sees only the names that emq/storage/fold_sandbox.lua allows: a local hides all other globals.
-- The server offers no way to bound the number of its instructions.
local allowed = {}
for name in string.gmatch('assert error ipairs math next pairs select string table tonumber tostring type unpack', '%a+') do
  allowed[name] = true
end

local function compiled(text)
  if not chunks[text] then
    local hidden = {}
    for name in pairs(_G) do
      if not allowed[name] then hidden[#hidden + 1] = name end
    end
    local chunk, why = loadstring('local ' .. table.concat(hidden, ', ') .. '; ' .. text, '=fold')
    chunks[text] = chunk or function() error(why, 0) end
  end
  return chunks[text]
end

-- Make one record of two, or return nil and the reason. If one has no record, another program added it: keep the other.
local function together(name, text, older, newer)
  if not (older and newer) then return older or newer end
  local older_merged, _, older_body = unpacked(older)
  local newer_merged, note, newer_body = unpacked(newer)
  if newer_merged and not older_merged and name == 'latest' then return newer end
  if not (older_merged and newer_merged) then
    return nil, 'the record that is stored for this content is damaged; the host puts it aside when it is due'
  end
  local ok, body = pcall(folds[name] or compiled(text), older_body, newer_body)
  if not ok then return nil, "the topic's " .. (folds[name] and name or 'Lua') .. ' fold failed: ' .. tostring(body) end
  if type(body) ~= 'string' then
    return nil, "the topic's Lua fold returned " .. tostring(body) .. '; it must return one string'
  end
  return packed(older_merged + newer_merged, note, body)
end
