"""A topic's own Lua chunk reaches its two arguments and pure functions, in every store, and nothing else."""

from __future__ import annotations

import pytest

from emq.runtime import errors
from emq.storage.slot_store import Fold, Keep, SlotAdd
from emq_testing.contract.slot_user import APART_TIME, NOW, STORES, SlotUser

pytestmark = [STORES, pytest.mark.parametrize("variant", [APART_TIME], ids=["time-apart"])]

FUNCTIONS = ["assert", "error", "ipairs", "next", "pairs", "select", "tonumber", "tostring", "type", "unpack"]
TABLES = ["math", "string", "table"]

ESCAPES = {
    "Python": "return python.builtins.__import__('os').popen('id').read()",
    "Python's iterators": "for x in python.iter(python.args('x')) do return tostring(x) end",
    "a body's attributes": "local older = ...; return older.__class__ .. ''",
    "the system": "return os.getenv('HOME') .. ''",
    "files": "return io.open('/etc/hostname'):read('a')",
    "modules": "return require('os').getenv('HOME') .. ''",
    "packages": "return package.path .. ''",
    "the server": "return redis.call('INFO')",
    "the server through the globals": "return _G.redis.call('INFO')",
    "the server's new name": "return server.call('INFO')",
    "the script's keys": "return KEYS[1] .. ''",
    "the script's arguments": "return ARGV[1] .. ''",
    "compiling": "return loadstring('return redis.call(\"INFO\")')()",
    "loading": "return load(function() return nil end) and 'loaded'",
    "environments": "return getfenv(0).redis.call('INFO')",
    "metatables": "return tostring(getmetatable('').__index) .. ''",
    "raw access": "return rawget(_G, 'redis').call('INFO')",
    "debugging": "return tostring(debug.getregistry())",
    "catching": "local ok = pcall(error, 'x'); return 'caught'",
    "catching with a handler": "local ok = xpcall(error, print); return 'caught'",
    "coroutines": "return coroutine.wrap(function() return 'ran' end)()",
    "the collector": "return tostring(collectgarbage('count'))",
}


@pytest.mark.parametrize("chunk", ESCAPES.values(), ids=ESCAPES.keys())
async def test_a_chunk_reaches_nothing_outside(user: SlotUser, chunk: str) -> None:
    await user.add(b"x", NOW - 5, body=b"older")
    [answer] = await user.sorted.add([SlotAdd(user.slot, b"x", NOW - 5, Keep.LAST, b"newer", b"", Fold("lua", chunk))])
    assert isinstance(answer, errors.InvalidMessage)
    [waiting] = await user.waiting()
    assert waiting.body == b"older"


async def test_a_chunk_uses_the_same_names_in_every_store(user: SlotUser) -> None:
    listed = ", ".join(f"type({name})" for name in FUNCTIONS + TABLES)
    await user.add(b"x", NOW - 5, body=b"older")
    await user.add(b"x", NOW - 5, body=b"newer", fold=Fold("lua", f"return table.concat({{{listed}}}, ' ')"))
    [waiting] = await user.waiting()
    assert waiting.body == b" ".join([b"function"] * len(FUNCTIONS) + [b"table"] * len(TABLES))


@pytest.mark.parametrize("chunk", ["seen = (seen or '') .. 'x'; return seen", "string.seen = 'x'; return string.seen"])
async def test_a_chunk_leaves_nothing_behind_for_the_next_call(user: SlotUser, chunk: str) -> None:
    await user.add(b"x", NOW - 5, body=b"older")
    [answer] = await user.sorted.add([SlotAdd(user.slot, b"x", NOW - 5, Keep.LAST, b"newer", b"", Fold("lua", chunk))])
    assert isinstance(answer, errors.InvalidMessage)
