"""Rows of SQL stores that somebody else wrote over cost their own queue, lane or slot only, and are told by name."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from emq.app import App
from emq.runtime import errors
from emq.runtime.environment import Environment
from emq.storage import lane_store, log_store, slot_store
from emq.storage import store as storage
from emq.storage.durability import Durability
from emq.storage.lane_store import LaneAdd, LaneClaim, LaneSettle
from emq.storage.log_store import Put, Read, Trim
from emq.storage.message import Message
from emq.storage.opening import open_store
from support.waiting import until

HUGE = (1 << 63) - 1

DAMAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "tail set back": ("store_queues", {"tail": 2}),
    "tail far ahead": ("store_queues", {"tail": HUGE}),
    "head beyond the tail": ("store_queues", {"head": 1 << 40}),
    "head below all": ("store_queues", {"head": -HUGE}),
    "no such group": ("store_queues", {"group_id": HUGE}),
    "waiting out of range": ("store_groups", {"waiting": HUGE}),
    "armed at NaN": ("store_groups", {"armed": "nobody", "armed_rank": float("nan")}),
    "armed at minus infinity": ("store_groups", {"armed": "nobody", "armed_rank": float("-inf")}),
    "a fold that is none": ("store_groups", {"fold": "\ufffd{"}),
}
SQLITE_ONLY: dict[str, tuple[str, dict[str, Any]]] = {
    "text for a number": ("store_queues", {"tail": "many"}),
    "text for an epoch": ("store_groups", {"epoch": "high"}),
    "no UTF-8": ("store_queues", {"armed": sa.text("CAST(x'ff80' AS TEXT)")}),
}


class Rows:
    """Writes over rows as a stranger would."""

    def __init__(self, url: str) -> None:
        self._engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))

    async def set(self, table: str, where: str, **values: Any) -> int:
        return await asyncio.to_thread(self._set, table, where, values)

    def _set(self, table: str, where: str, values: dict[str, Any]) -> int:
        raw = {name: str(value) if isinstance(value, sa.TextClause) else f":{name}" for name, value in values.items()}
        given = {name: value for name, value in values.items() if not isinstance(value, sa.TextClause)}
        with self._engine.begin() as connection:
            columns = ", ".join(f"{name} = {value}" for name, value in raw.items())
            return connection.execute(sa.text(f"UPDATE {table} SET {columns} WHERE {where}"), given).rowcount

    def close(self) -> None:
        self._engine.dispose()


def well(answers: Sequence[Any], bad: str, *, may_be_well: bool = False) -> None:
    """The middle one of three may be told to be damaged; the others are served."""
    assert not isinstance(answers[0], Exception)
    assert not isinstance(answers[2], Exception)
    if isinstance(answers[1], Exception):
        assert isinstance(answers[1], errors.KeyDamaged), repr(answers[1])
        assert bad in str(answers[1])
        assert "\n" not in str(answers[1])
    else:
        assert may_be_well


@pytest.mark.parametrize("damage", [*DAMAGES, *SQLITE_ONLY])
async def test_a_damaged_row_fails_the_entries_of_its_own_name_only(
    sql_url: str, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if damage in SQLITE_ONLY and not sql_url.startswith("sqlite"):
        pytest.skip("PostgreSQL refuses to store it")
    rows, store = Rows(sql_url), await open_store(sql_url, Environment.ONLINE)
    table, values = (DAMAGES | SQLITE_ONLY)[damage]
    a, bad, b = (f"{name}-{random.randrange(1 << 40):x}" for name in ("a", "bad", "b"))
    queues, lanes = [f"{n}/0/mid" for n in (a, bad, b)], [f"{n}/0" for n in (a, bad, b)]
    slots_ = [slot_store.Slot(f"{n}/0", slot_store.SlotKind.PRIORITY) for n in (a, bad, b)]
    member = slot_store.SlotAdd(slots_[0], b"first", 20.0, slot_store.Keep.LAST)
    try:
        for _ in range(3):
            await store.log.put([Put(q, [b"x", b"y"]) for q in queues])
        await store.lanes.add([LaneAdd(s, f"e{i}", b"x", i) for s in lanes for i in range(4)])
        await store.lanes.claim([LaneClaim(s, 2, 5) for s in lanes], 10)
        await store.sorted.add([member._replace(slot=s, member=b"m%d" % i) for s in slots_ for i in range(4)])
        held = await store.sorted.claim([slot_store.SlotClaim(s, 2, 5, 10) for s in slots_], 10)
        assert await rows.set(table, f"name LIKE '{bad}%'", **values)
        for _ in range(2):
            await _use_everything(store, bad, queues, lanes, slots_, held)
        await rows.set("store_queues", f"name LIKE '{bad}%'", head=1, tail=10, armed=None)
        group = f"(SELECT id FROM store_groups WHERE name = '{bad}/0')"
        await rows.set("store_queues", f"name LIKE '{bad}%'", group_id=sa.text(group))
        await rows.set("store_groups", f"name LIKE '{bad}%'", epoch=5, waiting=0, armed=None, armed_rank=None)
        monkeypatch.setattr("emq_stores.sql.damage.LOOK_AGAIN_S", 0.0)  # as if it was time already
        repaired = await store.log.put([Put(queues[1], [b"again"])])
        assert [*repaired[0]] == [10], "it goes on once it is repaired"
    finally:
        await store.close()
        rows.close()


async def _use_everything(
    store: storage.Store,
    bad: str,
    queues: list[str],
    lanes: list[str],
    slots_: list[slot_store.Slot],
    held: Sequence[Any],
) -> None:
    log, lane, sorted_ = store.log, store.lanes, store.sorted
    put = await log.put([Put(q, [b"z"]) for q in queues], Durability.ACCEPTED)
    well(put, bad, may_be_well=True)
    answers: list[Sequence[Any]] = [
        await log.read([Read(q, 1, 10, 5) for q in queues]),
        await log.read([Read(q, 1, 10, None) for q in queues]),
        await log.bounds(queues),
        await log.trim([Trim(q, 1, 5) for q in queues]),
        await lane.add([LaneAdd(s, f"n{random.random()}", b"x", 10, epoch=5) for s in lanes]),
        await lane.claim([LaneClaim(s, 1, 5) for s in lanes], 100),
        await lane.settle([LaneSettle(s, "e0", lane_store.LaneVerdict.RETRY, 5, 50, b"x") for s in lanes]),
        await lane.recover([(s, 5) for s in lanes], 1),
        await lane.inspect(lanes),
        await sorted_.add(
            [slot_store.SlotAdd(s, b"n%f" % random.random(), 20.0, slot_store.Keep.LAST) for s in slots_]
        ),
        await sorted_.claim([slot_store.SlotClaim(s, 1, 5, 100) for s in slots_], 100),
        await sorted_.settle(
            [
                slot_store.SlotSettle(
                    s, held[i].entries[0].member, slot_store.SlotVerdict.RETRY, held[i].entries[0].token, 5, 20.0
                )
                for i, s in enumerate(slots_)
            ]
        ),
        await sorted_.recover([slot_store.Recover(s, 5, None) for s in slots_], 100),
        await sorted_.inspect(slots_, 100),
    ]
    for each in answers:
        well(each, bad, may_be_well=True)
    assert len(answers[0][0].bodies) >= 6


@pytest.mark.parametrize(("table", "values"), [("store_queues", {"tail": 2}), ("store_queues", {"tail": HUGE})])
async def test_publishers_beside_a_damaged_queue_are_served_and_its_own_are_told_the_remedy(
    sql_url: str, table: str, values: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    rows, app = Rows(sql_url), App(sql_url, database=f"sqlite:///{tmp_path}/catalog.db")
    mark = f"{random.randrange(1 << 40):x}"
    handled: set[str] = set()

    async def handle(m: Message) -> None:
        handled.add(m.payload.decode())

    app.handler("*")(handle)
    async with app:
        for name in ("bad", "good"):
            await app.create_topic(f"{name}-{mark}", qps=200)
        async with app.running() as host:
            await asyncio.gather(*(app.publish(f"bad-{mark}", f"early {i}") for i in range(20)))
            await until(lambda: len(handled) == 20, 15)
            assert await rows.set(table, f"name LIKE 'bad-{mark}%'", **values)
            names = itertools.cycle(("bad", "good"))
            told = await asyncio.gather(
                *(app.publish(f"{next(names)}-{mark}", f"late {i}") for i in range(40)), return_exceptions=True
            )
            assert all(isinstance(outcome, str) for outcome in told[1::2])
            assert all(isinstance(outcome, errors.KeyDamaged) for outcome in told[::2])
            assert f"bad-{mark}/0/" in str(told[0])
            assert "store_queues" in str(told[0])
            await until(lambda: handled >= {f"late {i}" for i in range(1, 40, 2)}, 15)
            assert not host.guard.broken
    rows.close()
    assert "Traceback" not in caplog.text


async def test_a_hole_of_any_length_costs_one_read(sql_url: str) -> None:
    rows, store = Rows(sql_url), await open_store(sql_url, Environment.ONLINE)
    queue = f"t-{random.randrange(1 << 40):x}/0/mid"
    try:
        await store.log.put([Put(queue, [b"first"])])
        assert await rows.set("store_queues", f"name = '{queue}'", tail=1 << 40)
        await store.log.put([Put(queue, [b"behind"])])
        [first] = await store.log.read([Read(queue, 1, 100, 5)])
        assert isinstance(first, log_store.Batch)
        assert ([*first.offsets], first.next) == ([1], 101)
        [hole] = await store.log.read([Read(queue, first.next, 100, 5)])
        assert isinstance(hole, log_store.Batch)
        assert ([*hole.offsets], hole.next, hole.exhausted) == ([], 1 << 40, False)
        [behind] = await store.log.read([Read(queue, hole.next, 100, 5)])
        assert isinstance(behind, log_store.Batch)
        assert (behind.bodies, behind.exhausted) == ([b"behind"], True)
    finally:
        await store.close()
        rows.close()


@pytest.mark.parametrize("rank", [float("nan"), float("inf"), float("-inf"), 1e300])
async def test_a_member_of_a_damaged_rank_keeps_no_other_member_of_its_slot(sql_url: str, rank: float) -> None:
    if rank != rank and sql_url.startswith("sqlite"):
        pytest.skip("SQLite refuses to store it")
    rows, store = Rows(sql_url), await open_store(sql_url, Environment.ONLINE)
    slot = slot_store.Slot(f"t-{random.randrange(1 << 40):x}/0", slot_store.SlotKind.FIXED_TIME)
    try:
        await store.sorted.add(
            [slot_store.SlotAdd(slot, b"m%d" % i, 100.0 + i, slot_store.Keep.LAST) for i in range(4)]
        )
        where = f"slot_id = (SELECT id FROM store_groups WHERE name = '{slot.address}') AND rank"
        assert await rows.set("store_members", f"{where} = 101", rank=rank) == 1
        (found,) = await store.sorted.claim([slot_store.SlotClaim(slot, 10, 5, 1_000)], 1_000)
        assert isinstance(found, slot_store.SlotClaimed)
        assert {entry.member for entry in found.entries} >= {b"m0", b"m2", b"m3"}
        verdicts = [
            slot_store.SlotSettle(slot, e.member, slot_store.SlotVerdict.DEAD, e.token, 5, reason="no")
            for e in found.entries
        ]
        assert all(await store.sorted.settle(verdicts))
        assert await rows.set("store_members", f"{where} > 0 AND state = 2", rank=rank)
        assert {letter.member for letter in await store.sorted.dead(slot)} == {e.member for e in found.entries}
        assert not isinstance((await store.sorted.inspect([slot], 1_000))[0], Exception)
        assert await rows.set("store_members", where[:-9], state=1, rank=rank)
        assert not isinstance((await store.sorted.recover([slot_store.Recover(slot, 6, None)], 2_000))[0], Exception)
    finally:
        await store.close()
        rows.close()


async def test_a_member_whose_count_of_merged_messages_is_text_is_told_as_damaged(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"  # which keeps text in a column of numbers
    rows, store = Rows(url), await open_store(url, Environment.ONLINE)
    slot = slot_store.Slot("t/0", slot_store.SlotKind.FIXED_TIME)
    adds = [slot_store.SlotAdd(slot, b"m%d" % i, 100.0, slot_store.Keep.LAST) for i in range(2)]
    try:
        await store.sorted.add(adds)
        assert await rows.set("store_members", "rank = 100", merged="many") == 2
        assert [each.merged for each in await store.sorted.waiting(slot)] == [0, 0]
        assert await store.sorted.add(adds[:1])  # it meets its twin
        (found,) = await store.sorted.claim([slot_store.SlotClaim(slot, 10, 5, 1_000)], 1_000)
        assert isinstance(found, slot_store.SlotClaimed)
        assert {entry.member: entry.merged for entry in found.entries} == {b"m0": 0, b"m1": 0}
    finally:
        await store.close()
        rows.close()
