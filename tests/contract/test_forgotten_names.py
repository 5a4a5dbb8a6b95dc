"""What a store forgets of topics that are gone, and what it keeps."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from traces_of_store import traces

from emq.runtime import errors
from emq.storage.answers import served
from emq.storage.lane_store import LaneAdd, LaneClaim, LaneClaimed, LaneSettle, LaneVerdict
from emq.storage.log_store import Put, Read, Trim
from emq.storage.slot_store import Recover, SlotVerdict
from emq.storage.store import Ended, Store
from emq_stores.sql.backend import Transaction
from emq_stores.sql.store import SqlStore
from emq_testing.contract.slot_user import SlotUser
from emq_testing.contract.target import Can, Needs, Target, ends, put_one, read_one, watching
from support.waiting import until

NOW_MS = 1_700_000_000_000
MARK, OTHER_MARK = -(1 << 47) - 1, -2


@pytest.fixture(autouse=True)
def can_forget(target: Target, needs: Needs) -> None:
    needs(Can.DENSE)  # what has only PUT and GET cannot forget


async def seal(store: Store, *ended: Ended) -> None:
    for each in ended:
        served(await store.lanes.settle([LaneSettle(each.lane, "", LaneVerdict.SEAL)]))
        if each.slot is not None:
            await SlotUser(store, each.slot).settle(SlotVerdict.SEAL, b"")
        if each.queues:
            served(await store.log.trim([Trim(queue, 1 << 40, None, seal=True) for queue in each.queues]))


async def forget(store: Store, *ended: Ended) -> Sequence[Any]:
    answers: Sequence[Any] = await store.forget(ended)  # type: ignore[attr-defined]
    return answers


def group(target: Target, number: int = 0, mark: int = MARK) -> Ended:
    return Ended(target.slot(number), [target.queue("high", number), target.queue("low", number)], None, mark)


async def used(store: Store, ended: Ended) -> None:
    """Use all that a group has, as its hosts and producers do, until it is empty."""
    for queue in ended.queues:
        served(await store.log.put([Put(queue, [b"a", b"b"], layout=7, ids=[queue, f"{queue}2"], remember_ms=60_000)]))
        served(await store.log.trim([Trim(queue, 0, None, layout=7)]))
        await read_one(store.log, queue, 1, epoch=5)
        await read_one(store.log, queue, 3, epoch=5)
    lane = ended.lane
    served(
        await store.lanes.add([LaneAdd(lane, id_, b"x", NOW_MS) for id_ in ("acked", "recalled", "order#abcdefghijk")])
    )
    served(await store.lanes.settle([LaneSettle(lane, "recalled", LaneVerdict.RECALL, for_good=True)]))
    [claimed] = served(await store.lanes.claim([LaneClaim(lane, 10, 5)], NOW_MS))
    assert isinstance(claimed, LaneClaimed)
    served(await store.lanes.settle([LaneSettle(lane, id_, LaneVerdict.ACK, 5) for id_, _ in claimed.entries]))
    served(await store.lanes.claim([LaneClaim(lane, 10, 5)], NOW_MS))


async def test_two_calls_drop_all_traces_of_groups_that_are_sealed_and_empty(
    store: Store, other: Store, opened: Target
) -> None:
    a, b, kept = (group(opened, number) for number in range(3))
    for each in (a, b, kept):
        await used(store, each)
    await seal(store, a, b, kept)
    incarnations = [bounds.incarnation for bounds in served(await store.log.bounds(a.queues))]
    assert await forget(store, a, b) == [None, None]
    assert await forget(other, a, b) == [[3, 3], [3, 3]]
    left = await traces(store, opened)
    assert left
    assert {name for names in left.values() for name in names if not name.startswith(kept.lane)} == set()
    assert await ends(store.log, a.queues) == [(1, 1), (1, 1)]
    assert await put_one(store.log, a.queues[0], b"again") == range(1, 2)
    assert await put_one(other.log, a.queues[0], b"and again") == range(2, 3)
    assert (await read_one(store.log, a.queues[0], 1, epoch=1)).bodies == [b"again", b"and again"]
    assert served(await store.log.bounds(a.queues))[0].incarnation not in (0, *incarnations)
    assert await other.lanes.add([LaneAdd(a.lane, "recalled", b"x", NOW_MS, since_ms=0)]) == [True]
    [refused] = await store.log.put([Put(kept.queues[0], [b"x"])])
    assert isinstance(refused, errors.QueueSealed)
    assert await forget(store, a, b) == [None, None]
    assert served(await store.lanes.inspect([a.lane]))[0].waiting == 1


async def test_what_holds_something_or_is_open_stays_as_it_is(store: Store, target: Target) -> None:
    groups = [group(target, number) for number in range(7)]
    holds, waits, claims, died, lane_open, queue_open, _ = groups
    for each in groups[:-1]:
        await used(store, each)
    await put_one(store.log, holds.queues[1], b"kept")
    for each in (waits, claims):
        served(await store.lanes.add([LaneAdd(each.lane, "kept", b"kept", NOW_MS)]))
    served(await store.lanes.claim([LaneClaim(claims.lane, 1, 5)], NOW_MS))
    served(await store.lanes.add([LaneAdd(died.lane, "kept", b"kept", NOW_MS, "why")]))
    for each in groups[1:-1]:
        await seal(store, each)
    served(await store.lanes.settle([LaneSettle(holds.lane, "", LaneVerdict.SEAL)]))
    served(await store.log.trim([Trim(holds.queues[0], 99, None, seal=True)]))
    served(await store.lanes.settle([LaneSettle(lane_open.lane, "", LaneVerdict.OPEN)]))
    served(await store.log.trim([Trim(queue_open.queues[0], 0, None, seal=False)]))
    for _ in range(3):
        assert await forget(store, *groups) == [None] * 7  # nobody ever used the last one
    for each in groups[:-1]:
        [stale] = await store.log.read([Read(each.queues[0], 3, 1, 4)])
        assert isinstance(stale, errors.NotOwner), "an epoch is known as before"
    assert (await read_one(store.log, holds.queues[1], 1, epoch=5)).bodies[-1:] == [b"kept"]
    states = served(await store.lanes.inspect([each.lane for each in (waits, claims, died)]))
    assert [(s.waiting, s.prepared, s.dead, s.sealed) for s in states] == [
        (1, 0, 0, True),
        (0, 1, 0, True),
        (0, 0, 1, True),
    ]


@pytest.mark.parametrize("way", ["read", "claim", "recover", "another"])
async def test_a_group_that_somebody_owns_between_the_two_calls_stays(
    store: Store, other: Store, target: Target, way: str
) -> None:
    """It belongs to the next topic of its name; its host goes on from the end of the queue."""
    ended = group(target)
    await used(store, ended)
    await seal(store, ended)
    assert await forget(store, ended) == [None]
    match way:  # under the epoch of the former owner, or one that is lower: a bucket goes on under its epoch
        case "read":
            assert (await read_one(other.log, ended.queues[0], 3, epoch=5)).exhausted
        case "claim":
            served(await other.lanes.claim([LaneClaim(ended.lane, 0, 1)], 0))
        case "recover":
            assert served(await other.lanes.recover([(ended.lane, 1)])) == [0]
        case "another":
            assert await forget(other, ended._replace(mark=OTHER_MARK)) == [None]
    assert await forget(store, ended) == [None]
    assert await ends(store.log, ended.queues) == [(3, 3), (3, 3)]


async def test_the_first_call_fences_off_nobody_and_keeps_who_is_armed(
    store: Store, other: Store, opened: Target
) -> None:
    ended, canary = group(opened), opened.queue("canary", 9)
    async with watching(other, canary) as watcher:
        await read_one(other.log, ended.queues[0], 1, epoch=5)
        await seal(store, ended)
        assert await forget(store, ended) == [None]
        served(await store.log.trim([Trim(ended.queues[0], 0, None, seal=False)]))
        await put_one(store.log, ended.queues[0], b"first")
        await watcher.wakes(ended.queues[0])
        assert (await read_one(other.log, ended.queues[0], 1, epoch=5)).bodies == [b"first"]


async def test_a_wake_up_that_nobody_followed_is_forgotten_and_those_of_others_stay(
    store: Store, other: Store, opened: Target
) -> None:
    gone, stays = group(opened, 1), group(opened, 11)
    for each in (gone, stays):
        await used(store, each)
        await put_one(other.log, each.queues[0], b"wakes")
    before = {name for names in (await traces(store, opened)).values() for name in names}
    await seal(store, gone)
    for _ in range(2):
        await forget(store, gone)
    after = {name for names in (await traces(store, opened)).values() for name in names}
    assert before - after == {gone.lane, *gone.queues}
    assert {stays.lane, *stays.queues} <= after


async def test_an_owner_that_knew_the_queue_finds_out_that_it_begins_again(
    store: Store, other: Store, target: Target
) -> None:
    ended = group(target)
    await used(store, ended)
    await seal(store, ended)
    for _ in range(2):
        await forget(store, ended)
    [answer] = await other.log.read([Read(ended.queues[0], 3, 10, 5)])
    assert isinstance(answer, errors.MessagesLost)


async def test_a_slot_is_forgotten_with_its_group(user: SlotUser, store: Store, other: Store, opened: Target) -> None:
    ended = Ended(user.slot.name, [], user.slot, MARK)
    await user.fill(b"acked", b"retried")
    acked, retried = await user.claims(b"acked", b"retried")
    assert await user.settle(SlotVerdict.ACK, acked)
    assert await user.settle(SlotVerdict.RETRY, retried, score=7.0, reason="broke")
    [again] = await user.claims(b"retried")
    await seal(store, ended)
    assert [await forget(store, ended) for _ in range(2)] == [[None], [None]], "a member is claimed"
    assert await user.settle(SlotVerdict.ACK, again)
    assert await forget(store, ended) == [None]
    served(await store.sorted.recover([Recover(user.slot, user.epoch)], NOW_MS))
    assert await forget(store, ended) == [None], "somebody owns it"
    assert await forget(other, ended) == [[]]
    assert await traces(store, opened) == {}
    await user.fill(b"new")
    assert await user.sizes() == (1, 0, 0)


async def test_a_group_that_is_forgotten_at_this_moment_is_made_again_as_a_whole(
    store: Store, other: Store, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next topic of its name waits for the transaction that drops the rows."""
    if not isinstance(store, SqlStore) or not isinstance(other, SqlStore):
        pytest.skip("whole calls follow each other in this store")
    ended, backend = group(target), other._backend
    await used(store, ended)
    await seal(store, ended)
    assert await forget(store, ended) == [None]
    halfway, goes_on = threading.Event(), threading.Event()
    rows = Transaction.rows

    def rows_slowly(transaction: Transaction, statement: str, **values: Any) -> Sequence[Any]:
        if statement == "groups_forget":
            halfway.set()
            assert goes_on.wait(60.0)
        return rows(transaction, statement, **values)

    monkeypatch.setattr(Transaction, "rows", rows_slowly)
    forgetting = asyncio.create_task(forget(store, ended))
    await asyncio.to_thread(halfway.wait, 60.0)
    opening = asyncio.create_task(other.log.trim([Trim(queue, 0, None, seal=False) for queue in ended.queues]))
    if backend.db.dialect == "postgresql":  # SQLite lets no second transaction begin
        await until(lambda: backend.db.run(_lock_waits))
    goes_on.set()
    assert await forgetting == [[3, 3]]
    assert served(await opening) == [False, False]
    assert await put_one(other.log, ended.queues[0], b"first") == range(1, 2)
    assert (await read_one(store.log, ended.queues[0], 1, epoch=1)).bodies == [b"first"]


def _lock_waits(connection: sa.Connection) -> int:
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    return int(connection.execute(sa.text(query)).scalar_one())
