"""A Lua fold that runs in this process is bounded, and only an operator lets topics bring one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import lupa
import pytest
from lupa import LuaRuntime

from emq.database import Database
from emq.runtime import errors
from emq.storage import folds
from emq.storage.slot_store import Fold
from emq.topics import catalog_file
from emq.topics.catalog import Catalog
from emq.topics.model import Kind, Topic, TopicOptions

LUA = "local older, newer = ...; return older .. newer"


@pytest.mark.parametrize(
    ("chunk", "why"),
    [
        ("while true do end", "instructions"),
        ("local function f() return f() end return f()", "instructions"),
        ("local t = {} for i = 1, 1e9 do t[i] = i end", "instructions|memory"),
        ("return string.rep('x', 1 << 30)", "memory"),
        ("local s = 'x' while true do s = s .. s end", "memory"),
        ("error(setmetatable({}, {}))", "failed"),
        ("error({})", "failed"),
    ],
)
def test_a_chunk_that_never_ends_or_fills_the_memory_fails_soon(chunk: str, why: str) -> None:
    fold = Fold("lua", chunk)
    begun = time.perf_counter()
    for _ in range(2):
        with pytest.raises(errors.InvalidMessage, match=why):
            folds.apply(fold, b"a", b"b")
    assert time.perf_counter() - begun < 20  # 2 s, on a machine that does nothing else
    assert folds.apply(Fold("lua", LUA), b"a", b"b") == b"ab"


def test_a_chunk_may_fold_two_large_bodies() -> None:
    large = b"x" * (10 << 20)
    assert len(folds.apply(Fold("lua", LUA), large, large)) == 20 << 20


@pytest.mark.parametrize("chunk", ["local t = {} while true do t[#t + 1] = {} end", LUA])
def test_a_chunk_keeps_no_memory_after_its_call(chunk: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[LuaRuntime]()
    monkeypatch.setattr(lupa, "LuaRuntime", lambda **options: made.append(LuaRuntime(**options)) or made[-1])
    folds.compiled.cache_clear()
    with contextlib.suppress(errors.InvalidMessage):
        folds.apply(Fold("lua", chunk), b"x" * (10 << 20), b"x" * (10 << 20))
    assert [runtime.get_memory_used() < folds.MAX_KEPT_MEMORY for runtime in made] == [True]


@pytest.fixture
async def db(tmp_path: Path) -> AsyncIterator[Database]:
    opened = await Database.open(f"sqlite:///{tmp_path}/emq.db")
    yield opened
    await opened.close()


def topic(lua: str, qps: float = 1.0) -> Topic:
    options = TopicOptions(merge="key", fold="lua", fold_lua=lua)
    return Topic(name="t", qps=qps, kind=Kind.RANGE_MERGE, options=options)


async def test_only_an_operator_lets_a_topic_bring_a_chunk(db: Database) -> None:
    user, operator = Catalog(db, "online", None), Catalog(db, "online", None, lua_folds=True)
    with pytest.raises(errors.InvalidTopic, match="lua_folds = true"):
        await user.create(topic(LUA))
    with pytest.raises(errors.UnknownTopic):
        await user.get("t")
    await operator.create(topic(LUA))
    text = catalog_file.dump(await user.list(), "toml")
    with pytest.raises(errors.InvalidTopic, match="lua_folds = true"):
        await user.update("t", fold_lua=LUA + " .. ''")
    with pytest.raises(errors.InvalidTopic, match="lua_folds = true"):
        await user.put_many(catalog_file.load(text.replace("older .. newer", "newer .. older"), "toml"))


async def test_a_topic_keeps_the_chunk_that_it_has(db: Database) -> None:
    user, operator = Catalog(db, "online", None), Catalog(db, "online", None, lua_folds=True)
    await operator.create(topic(LUA))
    assert (await user.update("t", qps=0.5)).qps == 0.5
    await user.put_many(catalog_file.load(catalog_file.dump(await user.list(), "toml"), "toml"))
    assert (await user.create_many([topic(LUA)], exist_ok=True))[0].options.fold_lua == LUA
    await user.update("t", fold="latest", fold_lua="")
