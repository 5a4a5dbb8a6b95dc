"""What the SQL store's slots promise beyond the contract, on SQLite and PostgreSQL."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from emq.runtime import errors
from emq.runtime.environment import Environment
from emq.storage.slot_store import (
    LATEST,
    Entry,
    Fold,
    Keep,
    Slot,
    SlotAdd,
    SlotClaim,
    SlotClaimed,
    SlotKind,
    SlotSettle,
    SlotVerdict,
)
from emq_stores.sql import SqlStore, open_store

NOW = 1_700_000_000_000
_count = itertools.count(1)


@pytest.fixture
async def store(sql_url: str) -> AsyncIterator[SqlStore]:
    opened = await open_store(sql_url, Environment.ONLINE)
    yield opened
    await opened.close()


@pytest.fixture
def slot() -> Iterator[Slot]:
    return Slot(f"sorted{os.getpid()}-{next(_count)}/0", SlotKind.FIXED_TIME)


def add(slot: Slot, member: bytes, score: float = NOW, body: bytes = b"", fold: Fold = LATEST) -> SlotAdd:
    return SlotAdd(slot, member, score, Keep.LAST, body, fold=fold)


async def claim(store: SqlStore, slot: Slot, limit: int = 100, epoch: int = 1) -> list[Entry]:
    (answer,) = await store.sorted.claim([SlotClaim(slot, limit, epoch, NOW)], NOW)
    assert isinstance(answer, SlotClaimed)
    return [*answer.entries]


def settle(slot: Slot, entry: Entry, verdict: SlotVerdict, score: float = 0, reason: str = "") -> SlotSettle:
    return SlotSettle(slot, entry.member, verdict, entry.token, 1, score, reason)


async def test_what_waits_is_prepared_or_dead_survives_a_restart(sql_url: str, slot: Slot) -> None:
    store = await open_store(sql_url, Environment.ONLINE)
    await store.sorted.add([add(slot, name) for name in (b"a", b"b", b"c")])
    first, _ = await claim(store, slot, 2, epoch=7)
    await store.sorted.settle([settle(slot, first, SlotVerdict.DEAD, reason="why")._replace(epoch=7)])
    await store.close()
    store = await open_store(sql_url, Environment.ONLINE)
    assert (await store.sorted.inspect([slot], NOW))[0] == (1, 1, 1, 1, NOW, NOW, 0)
    (stale,) = await store.sorted.claim([SlotClaim(slot, 1, 6, NOW)], NOW)
    assert isinstance(stale, errors.NotOwner)
    assert f"'{slot.name}'" in str(stale)
    await store.close()


async def test_members_may_be_long_alike_and_of_any_bytes(store: SqlStore, slot: Slot) -> None:
    long = bytes(1 << 20)
    members = [long, long[:-1] + b"\x01", b"", b"\x00", b"\xff\xfe", b"'; --"]
    assert await store.sorted.add([add(slot, member) for member in members]) == [True] * 6
    assert await store.sorted.add([add(slot, member) for member in members]) == [False] * 6
    entries = await claim(store, slot)
    assert sorted(entry.member for entry in entries) == sorted(entry.body for entry in entries) == sorted(members)


async def test_any_text_may_be_a_reason(store: SqlStore, slot: Slot) -> None:
    odd = "nul \0 and half a character \ud800 'quoted' \n"
    await store.sorted.add([add(slot, b"x")])
    (entry,) = await claim(store, slot)
    assert await store.sorted.settle([settle(slot, entry, SlotVerdict.RETRY, 16, odd)]) == [True]
    (entry,) = await claim(store, slot)
    assert await store.sorted.settle([settle(slot, entry, SlotVerdict.DEAD, reason=odd)]) == [True]
    (dead,) = await store.sorted.dead(slot)
    assert dead.reason == dead.history[0][1] == "nul \0 and half a character ? 'quoted' \n"


async def test_claims_of_one_slot_in_one_call_take_different_members(store: SqlStore, slot: Slot) -> None:
    await store.sorted.add([add(slot, b"%d" % n, NOW - 9 + n) for n in range(5)])
    asked = [
        SlotClaim(slot, 2, 1, NOW),
        SlotClaim(slot, 2, 2, NOW),
        SlotClaim(slot, 9, 1, NOW),
        SlotClaim(slot, 9, 2, NOW),
    ]
    answers = await store.sorted.claim(asked, NOW)
    assert isinstance(answers[2], errors.NotOwner)
    taken = [[entry.member for entry in each.entries] for each in answers if isinstance(each, SlotClaimed)]
    assert taken == [[b"0", b"1"], [b"2", b"3"], [b"4"]]


async def test_one_call_may_replay_a_dead_member_and_bury_its_twin(store: SqlStore, slot: Slot) -> None:
    await store.sorted.add([add(slot, b"x")])
    (first,) = await claim(store, slot)
    await store.sorted.settle([settle(slot, first, SlotVerdict.DEAD, reason="first")])
    await store.sorted.add([add(slot, b"x")])
    (second,) = await claim(store, slot)
    answers = await store.sorted.settle(
        [SlotSettle(slot, b"x", SlotVerdict.REPLAY, score=NOW), settle(slot, second, SlotVerdict.DEAD, reason="second")]
    )
    assert answers == [True, True]
    assert [dead.reason for dead in await store.sorted.dead(slot)] == ["second"]
    assert [entry.member for entry in await claim(store, slot)] == [b"x"]


async def test_a_full_disk_refuses_adds_and_what_is_claimed_can_still_be_settled(tmp_path: Path, slot: Slot) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/emq.db", Environment.ONLINE)
    run = store._backend.db.run
    await store.sorted.add([add(slot, bytes([n]) * 3000) for n in range(20)])
    await run(lambda c: c.exec_driver_sql("PRAGMA max_page_count=1").all())
    with pytest.raises(errors.StoreFull, match="no room left"):
        await store.sorted.add([add(slot, b"small"), add(slot, bytes(100_000))])
    assert (await store.sorted.inspect([slot], NOW))[0].waiting == 20
    while entries := await claim(store, slot, 7):
        assert all(await store.sorted.settle([settle(slot, entry, SlotVerdict.ACK) for entry in entries]))
    await store.close()
