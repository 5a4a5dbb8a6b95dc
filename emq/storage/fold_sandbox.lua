-- Compiles a topic's fold so that it reaches nothing but its two arguments and pure functions.
-- Takes the text of the chunk and the most instructions that one call may run.
-- Returns a function of two strings, which returns whether it worked, and its result or why it failed. Where the text is
-- not valid Lua it returns nil and the compiler's message. (What is raised would reach Python with a stack of many lines.)
-- storage_adapters/emq_stores/redis/lua/slot_folds.lua allows the same names.
local text, most = ...
local pcall, error, sethook = pcall, error, debug.sethook

-- A table that the chunk can read and not change, so that one call leaves nothing behind for the next.
local function frozen(entries)
  return setmetatable({}, {
    __index = entries,
    __newindex = function(_, name) error('a fold may not set ' .. tostring(name), 0) end,
    __metatable = false,
  })
end

local chunk, why = load(text, '=fold', 't', frozen({
  assert = assert, error = error, ipairs = ipairs, next = next, pairs = pairs, select = select,
  tonumber = tonumber, tostring = tostring, type = type, unpack = table.unpack,
  math = frozen(math), string = frozen(string), table = frozen(table),
}))
if not chunk then return nil, why end

local function stop()
  error('it took more than ' .. most .. ' instructions', 0)
end

-- The chunk has no pcall of its own, so nothing in it can catch what the hook raises.
return function(older, newer)
  sethook(stop, '', most)
  local ok, result = pcall(chunk, older, newer)
  sethook()
  return ok, result
end
