"""A lane remembers what an operator took for good, so that no repeated add brings it back."""

from __future__ import annotations

from typing import Any

import pytest

from emq.storage.lane_store import (
    AHEAD_S,
    MOST_TAKEN,
    TAKEN_S,
    LaneAdd,
    LaneClaim,
    LaneClaimed,
    LaneSettle,
    LaneState,
    LaneVerdict,
)
from emq.storage.store import Store
from emq_stores.memory import world
from emq_stores.redis import lane_store as redis_lanes
from emq_stores.redis.keys import shard_of
from emq_stores.sql import lane_store as sql_lanes
from emq_testing.contract.target import Target
from support.manual_clock import ManualClock

NOW_MS = 1_700_000_000_000
NOTHING = LaneState(0, 0, 0, None)

TAKES = pytest.mark.parametrize("verdict", [LaneVerdict.RECALL, LaneVerdict.PURGE])


def entry(lane: str, id_: str, verdict: LaneVerdict, *, epoch: int | None = None) -> LaneAdd:
    """An entry in the state that the verdict starts from."""
    reason = "hopeless" if verdict is LaneVerdict.PURGE else None
    return LaneAdd(lane, id_, b"x", NOW_MS, reason, epoch)


async def take(store: Store, lane: str, verdict: LaneVerdict, *ids: str, for_good: bool = True) -> None:
    assert await store.lanes.add([entry(lane, id_, verdict) for id_ in ids]) == [True] * len(ids)
    settles = [LaneSettle(lane, id_, verdict, for_good=for_good) for id_ in ids]
    assert await store.lanes.settle(settles) == [True] * len(ids)


async def add_again(store: Store, lane: str, *ids: str, reason: str | None = None, since_ms: int = 0) -> list[object]:
    return [*await store.lanes.add([LaneAdd(lane, i, b"old", NOW_MS, reason, 1, since_ms=since_ms) for i in ids])]


def manual_clock(store: Store) -> ManualClock:
    """The clock by which the store notes from now on when entries are taken."""
    lanes: Any = store.lanes
    owner = getattr(lanes, "_world", None) or getattr(lanes, "_backend", lanes)
    owner.clock = clock = ManualClock()
    return clock


async def state(store: Store, lane: str) -> LaneState:
    [found] = await store.lanes.inspect([lane])
    assert isinstance(found, LaneState)
    return found


@TAKES
@pytest.mark.parametrize("reason", [None, "hopeless"])
async def test_what_was_taken_for_good_is_not_added_again(
    store: Store, target: Target, verdict: LaneVerdict, reason: str | None
) -> None:
    lane, neighbour = target.slot(0), target.slot(1)
    await take(store, lane, verdict, "a", "b")
    for is_first in (True, False):
        assert await add_again(store, lane, "a", "unknown", "b", reason=reason) == [None, is_first, None]
    assert await add_again(store, neighbour, "a", reason=reason) == [True]
    found = await state(store, lane)
    assert (found.waiting, found.prepared, found.dead) == ((1, 0, 0) if reason is None else (0, 0, 1))
    assert [e.id for e in await store.lanes.waiting(lane)] == ([] if reason else ["unknown"])
    assert [e.id for e in await store.lanes.dead(lane)] == (["unknown"] if reason else [])
    [claimed] = await store.lanes.claim([LaneClaim(lane, 9, 1)], NOW_MS)
    assert isinstance(claimed, LaneClaimed)
    assert [id_ for id_, _ in claimed.entries] == ([] if reason else ["unknown"])


async def test_nothing_is_left_of_an_entry_that_was_taken_for_good(store: Store, target: Target) -> None:
    lane = target.slot()
    await take(store, lane, LaneVerdict.RECALL, "a")
    verdicts = [LaneSettle(lane, "a", v, 1, NOW_MS) for v in (LaneVerdict.ACK, LaneVerdict.RETRY, LaneVerdict.DEAD)]
    verdicts += [LaneSettle(lane, "a", v) for v in (LaneVerdict.REPLAY, LaneVerdict.PURGE, LaneVerdict.RECALL)]
    assert await store.lanes.settle(verdicts) == [False] * len(verdicts)
    assert await store.lanes.recover([(lane, 9)]) == [0]
    assert await state(store, lane) == NOTHING
    assert await store.lanes.claim([LaneClaim(lane, 9, 9)], NOW_MS + 1) == [LaneClaimed([], None, is_empty=True)]
    assert (await store.lanes.waiting(lane), await store.lanes.dead(lane)) == ([], [])


@TAKES
@pytest.mark.parametrize("epoch", [None, 1])
async def test_any_other_add_is_as_before_and_the_lane_forgets(
    store: Store, target: Target, verdict: LaneVerdict, epoch: int | None
) -> None:
    lane = target.slot()
    await take(store, lane, verdict, "a")
    assert await store.lanes.add([entry(lane, "a", verdict, epoch=epoch)] * 2) == [True, False]
    assert await store.lanes.settle([LaneSettle(lane, "a", verdict)]) == [True]
    assert await add_again(store, lane, "a") == [True]


@TAKES
async def test_what_is_taken_to_be_added_elsewhere_may_be_added_again(
    store: Store, target: Target, verdict: LaneVerdict
) -> None:
    await take(store, target.slot(), verdict, "a", for_good=False)
    assert await add_again(store, target.slot(), "a") == [True]


async def test_an_add_again_leaves_an_entry_that_is_there_as_it_is(store: Store, target: Target) -> None:
    lane = target.slot()
    assert await store.lanes.add([LaneAdd(lane, "a", b"new", NOW_MS)]) == [True]
    assert await add_again(store, lane, "a") == [False]
    assert [(e.id, e.body) for e in await store.lanes.waiting(lane)] == [("a", b"new")]


async def test_a_retry_that_is_repeated_after_a_recall_changes_nothing(
    store: Store, other: Store, target: Target
) -> None:
    lane = target.slot()
    await store.lanes.add([LaneAdd(lane, "a", b"1", NOW_MS)])
    await store.lanes.claim([LaneClaim(lane, 9, 1)], NOW_MS)
    retry = LaneSettle(lane, "a", LaneVerdict.RETRY, 1, NOW_MS, b"2")
    assert await store.lanes.settle([retry]) == [True]
    assert await other.lanes.settle([LaneSettle(lane, "a", LaneVerdict.RECALL, for_good=True)]) == [True]
    assert await store.lanes.settle([retry]) == [False]
    assert await add_again(store, lane, "a") == [None]
    assert await state(other, lane) == NOTHING


@TAKES
async def test_what_was_taken_before_the_add_was_first_sent_does_not_count(
    store: Store, target: Target, verdict: LaneVerdict
) -> None:
    lane, clock = target.slot(), manual_clock(store)
    await take(store, lane, verdict, "a", "b")
    taken_ms = int(clock.now() * 1000)
    assert await add_again(store, lane, "a", since_ms=taken_ms) == [None]
    assert await add_again(store, lane, "a", since_ms=taken_ms + 1) == [True]
    assert await store.lanes.settle([LaneSettle(lane, "a", LaneVerdict.RECALL)]) == [True]
    assert await add_again(store, lane, "a", "b") == [True, None], "the first add made the lane forget"


async def test_a_failed_take_is_not_remembered(store: Store, target: Target) -> None:
    lane = target.slot()
    taken = [LaneSettle(lane, "a", v, for_good=True) for v in (LaneVerdict.RECALL, LaneVerdict.PURGE)]
    assert await store.lanes.settle(taken) == [False, False]
    assert await add_again(store, lane, "a") == [True]


async def test_a_lane_forgets_as_a_whole_and_no_other_with_it(store: Store, target: Target) -> None:
    lane, neighbour = target.slot(0), target.slot(1)
    for each in (lane, neighbour):
        await take(store, each, LaneVerdict.RECALL, "a")
    waiting = LaneAdd(lane, "b", b"x", NOW_MS)
    assert await store.lanes.add([waiting]) == [True]
    assert await store.lanes.settle([LaneSettle(lane, "", LaneVerdict.FORGET)] * 2) == [True, True]
    assert (await state(store, lane)).waiting == 1
    assert await add_again(store, lane, "a") == [True]
    assert await add_again(store, neighbour, "a") == [None]


@pytest.fixture(params=[500, pytest.param(MOST_TAKEN, marks=pytest.mark.long)])
def most(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many a lane remembers: few, so that a test takes few. All of them are taken in tests that are long."""
    for module in (world, sql_lanes, redis_lanes):
        monkeypatch.setattr(module, "MOST_TAKEN", request.param)
    most: int = request.param
    return most


async def test_a_lane_remembers_the_latest_only(store: Store, target: Target, most: int) -> None:
    lane, part = target.slot(), most // 10
    ids = [f"{n}" for n in range(most + 2 * part)]
    for start in range(0, len(ids), part):
        await take(store, lane, LaneVerdict.RECALL, *ids[start : start + part])
    latest = ids[-most + part :]
    assert await add_again(store, lane, *latest) == [None] * len(latest)
    assert (await add_again(store, lane, *ids[:part])).count(True) == part


async def test_a_lane_remembers_as_many_that_were_taken_in_one_instant(store: Store, target: Target, most: int) -> None:
    manual_clock(store)
    lane, part = target.slot(), most // 10
    ids = [f"{n:05}" for n in range(most + part)]
    for start in range(0, len(ids), part):
        await take(store, lane, LaneVerdict.RECALL, *ids[start : start + part])
    assert (await add_again(store, lane, *ids)).count(None) == most


async def test_a_lane_remembers_for_an_hour_also_after_a_call_whose_clock_is_ahead(
    store: Store, target: Target
) -> None:
    clock = manual_clock(store)
    await take(store, target.slot(), LaneVerdict.RECALL, "a")
    clock.advance(AHEAD_S + TAKEN_S)
    await take(store, target.slot(), LaneVerdict.RECALL, "b")
    assert await add_again(store, target.slot(), "a", "b") == [None, None]
    clock.advance(1)
    await take(store, target.slot(), LaneVerdict.RECALL, "c")
    assert await add_again(store, target.slot(), "a", "b", "c") == [True, None, None]


async def test_a_lane_remembers_what_was_taken_last_also_after_calls_whose_clock_is_ahead(
    store: Store, target: Target, most: int
) -> None:
    lane, clock, part = target.slot(), manual_clock(store), most // 10
    before, taken_ms = clock.now(), int(clock.now() * 1000)
    clock.advance(86_400)
    for start in range(0, most, part):
        await take(store, lane, LaneVerdict.RECALL, *(f"{n:05}" for n in range(start, start + part)))
    clock.__init__(before)  # type: ignore[misc]
    await take(store, lane, LaneVerdict.RECALL, "!1", "!2", "!3")
    assert await add_again(store, lane, "!1", since_ms=taken_ms) == [None]
    assert await add_again(store, lane, "!1", "!2", since_ms=taken_ms + 1) == [True, True]
    assert await add_again(store, lane, "!3", "00000", f"{most - 1:05}") == [None, True, None]


@pytest.mark.parametrize("target", ["redis", "redis_cluster", "redis_servers"], indirect=True)
async def test_redis_forgets_a_lane_that_nothing_more_is_taken_from(store: Store, target: Target) -> None:
    lanes: Any = store.lanes
    await take(store, target.slot(), LaneVerdict.RECALL, "a")
    shard = lanes._shards[shard_of(target.slot(), len(lanes._shards))]
    [taken] = shard.lane(target.slot(), ["taken"])
    left_ms = await lanes._server.command("PTTL", taken)
    assert 0 < left_ms <= TAKEN_S * 1000
