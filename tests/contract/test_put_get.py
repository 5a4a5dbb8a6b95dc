"""What the adapter base for PUT and GET(i) adds: tail, holes, polls and the physical cap, in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest import mock

import pytest
from holey_store import HoleyClient, Operation

from emq.runtime import errors
from emq.runtime.environment import Environment
from emq.storage.log_store import Put, Trim
from emq_stores.memory import MemoryStore
from emq_stores.put_get import Options, PutGetStore
from emq_stores.put_get.limits import QueueLimits
from emq_stores.put_get.schedule import PollSchedule
from emq_testing.contract.target import Watcher, ends, put_one, read_all, read_one
from support.virtual import virtual

QUEUE = "t/0/high"
PHYSICAL = f"online/{QUEUE}"

pytestmark = virtual(least_s=1e-9)
"""Polls look again and again, so time goes on in each round."""


def open_on(client: HoleyClient, options: Options | None = None) -> PutGetStore:
    return PutGetStore(client, MemoryStore(), Environment.ONLINE, options)


@pytest.fixture
def client() -> HoleyClient:
    return HoleyClient()


@pytest.fixture
def store(client: HoleyClient) -> PutGetStore:
    return open_on(client)


@asynccontextmanager
async def watching(store: PutGetStore) -> AsyncIterator[Watcher]:
    watcher = Watcher(store)
    task = asyncio.create_task(watcher.run())
    try:
        yield watcher
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def now() -> float:
    return asyncio.get_running_loop().time()


def most_in_a_second(operations: list[Operation]) -> int:
    times = sorted(operation.at for operation in operations)
    first = most = 0
    for last, at in enumerate(times):
        while times[first] <= at - 1:
            first += 1
        most = max(most, last - first + 1)
    return most


async def test_no_second_sees_more_operations_on_a_queue_than_its_cap(client: HoleyClient, store: PutGetStore) -> None:
    bodies = [b"%d" % n for n in range(300)]
    await asyncio.gather(
        put_one(store.log, QUEUE, *bodies), read_all(store.log, QUEUE, 300), store.log.bounds([QUEUE] * 3)
    )
    assert now() <= len(client.operations) / 150 * 1.15
    await asyncio.sleep(10)
    await put_one(store.log, QUEUE, *bodies)
    assert len(client.operations) > 700
    assert most_in_a_second(client.operations) <= 150


async def test_the_cap_is_one_for_each_queue(store: PutGetStore) -> None:
    await store.log.put([Put(f"t/{group}/high", [b""] * 15) for group in range(100)])
    assert now() < 0.01


async def test_only_queues_in_use_have_a_limiter() -> None:
    limits = QueueLimits(150)
    for n in range(5000):
        await limits.acquire(f"t/{n}/high")
        await asyncio.sleep(0.001)
    assert len(limits) < 300


async def test_a_hole_is_skipped_when_its_grace_is_over_and_not_before(client: HoleyClient, store: PutGetStore) -> None:
    await put_one(store.log, QUEUE, b"1")
    client.burn(PHYSICAL)
    await put_one(store.log, QUEUE, b"3")
    async with watching(store) as watcher:
        batch = await read_one(store.log, QUEUE, 1)
        assert (list(batch.offsets), batch.next, batch.exhausted) == ([1], 2, True)
        started = now()
        await watcher.wakes(QUEUE)
        assert 2.0 <= now() - started < 2.1
        batch = await read_one(store.log, QUEUE, 2)
        assert (list(batch.offsets), list(batch.bodies), batch.next) == ([3], [b"3"], 4)


async def test_a_write_that_was_under_way_is_delivered_in_its_place(client: HoleyClient, store: PutGetStore) -> None:
    late = client.burn(PHYSICAL)
    await put_one(store.log, QUEUE, b"2")
    async with watching(store) as watcher:
        assert (await read_one(store.log, QUEUE, 1)).next == 1
        await asyncio.sleep(1.2)
        client.appear(PHYSICAL, late, b"1")
        await watcher.wakes(QUEUE)
        assert now() < 2.0
        assert list((await read_one(store.log, QUEUE, 1)).bodies) == [b"1", b"2"]


@pytest.mark.parametrize("lost", [1, 5, 16])
async def test_lost_writes_are_not_mistaken_for_the_tail(client: HoleyClient, lost: int) -> None:
    client.burn(PHYSICAL, lost)
    await put_one(open_on(client).log, QUEUE, b"x")
    reader = open_on(client)
    assert await ends(reader.log, [QUEUE]) == [(1, lost + 2)]
    async with watching(reader) as watcher:
        assert (await read_one(reader.log, QUEUE, 1)).exhausted
        await watcher.wakes(QUEUE)
        batch = await read_one(reader.log, QUEUE, 1)
        assert (list(batch.bodies), batch.next) == ([b"x"], lost + 2)


@pytest.mark.parametrize("lost", [1, 7, 16])
async def test_polls_find_a_message_above_lost_writes_at_the_tail(
    client: HoleyClient, store: PutGetStore, lost: int
) -> None:
    async with watching(store) as watcher:
        assert (await read_one(store.log, QUEUE, 1)).exhausted
        client.burn(PHYSICAL, lost)
        await put_one(open_on(client).log, QUEUE, b"x")
        await asyncio.sleep(16 * 5 + 2)  # a poll looks at one offset of the window, another each time
        await watcher.wakes(QUEUE)
        assert list((await read_one(store.log, QUEUE, 1)).bodies) == [b"x"]


async def test_a_longer_run_of_lost_writes_is_passed_after_a_put_through_the_same_instance(
    client: HoleyClient, store: PutGetStore
) -> None:
    client.burn(PHYSICAL, 40)
    async with watching(store) as watcher:
        assert (await read_one(store.log, QUEUE, 1)).exhausted
        await put_one(store.log, QUEUE, b"x")
        await watcher.wakes(QUEUE)
        watcher.forget()
        assert (await read_one(store.log, QUEUE, 1)).exhausted
        await watcher.wakes(QUEUE)
        assert list((await read_one(store.log, QUEUE, 1)).offsets) == [41]


async def test_the_tail_of_a_long_queue_is_found_in_a_few_dozen_gets() -> None:
    client = HoleyClient(lost_every=9)
    await put_one(open_on(client, Options(max_queue_qps=1e6)).log, QUEUE, *[b""] * 20_000)
    client.operations.clear()
    (bounds,) = await open_on(client, Options(max_queue_qps=1e6)).log.bounds([QUEUE])
    assert bounds[:2] == (1, 20_000 + 20_000 // 9 + 1)
    assert len(client.operations) < 400


async def test_a_poll_backs_off_while_nothing_comes_and_still_finds_what_does(
    client: HoleyClient, store: PutGetStore
) -> None:
    queues = [f"t/{group}/high" for group in range(50)]
    async with watching(store) as watcher:
        for queue in queues:
            await read_one(store.log, queue, 1)
        client.operations.clear()
        await asyncio.sleep(60)
        counts = Counter(operation.queue for operation in client.operations)
        assert len(counts) == 50
        assert max(counts.values()) <= 2 * (8 + 60 / 5)
        started = now()
        await put_one(open_on(client).log, queues[7], b"x")
        await watcher.wakes(queues[7])
        assert now() - started <= 5.01


async def test_a_queue_that_is_not_armed_is_not_polled(client: HoleyClient, store: PutGetStore) -> None:
    await put_one(store.log, QUEUE, b"a", b"b", b"c")
    async with watching(store):
        assert not (await read_one(store.log, QUEUE, 1, limit=2)).exhausted
        client.operations.clear()
        await asyncio.sleep(600)
    assert client.operations == []


async def test_a_put_through_the_same_instance_wakes_at_once(store: PutGetStore) -> None:
    async with watching(store) as watcher:
        await read_one(store.log, QUEUE, 1)
        await asyncio.sleep(100.5)
        before = now()
        await put_one(store.log, QUEUE, b"x")
        await watcher.wakes(QUEUE)
        assert now() - before < 0.001


async def test_a_failing_storage_is_told_for_each_put_and_polled_again_later(
    client: HoleyClient, store: PutGetStore
) -> None:
    async with watching(store) as watcher:
        await read_one(store.log, QUEUE, 1)
        client.failing = errors.StoreUnavailable("down; try again later")
        (answer,) = await store.log.put([Put(QUEUE, [b"x"])])
        assert answer is client.failing
        with pytest.raises(errors.StoreUnavailable):
            await read_one(store.log, QUEUE, 1)
        await asyncio.sleep(30)
        client.failing = None
        await put_one(open_on(client).log, QUEUE, b"x")
        await watcher.wakes(QUEUE)


@pytest.mark.parametrize("failure", [RuntimeError("the transport is closed"), asyncio.CancelledError()])
async def test_polls_go_on_after_an_error_that_nobody_expects(
    client: HoleyClient, store: PutGetStore, failure: BaseException
) -> None:
    """A driver may raise `CancelledError`, too: where a task of its own was cancelled."""
    async with watching(store) as watcher:
        await read_one(store.log, QUEUE, 1)
        client.failing = failure
        await asyncio.sleep(30)
        client.failing = None
        await put_one(open_on(client).log, QUEUE, b"x")
        await watcher.wakes(QUEUE)


def test_a_poll_that_is_set_again_for_the_same_time_is_due_again() -> None:
    schedule = PollSchedule()
    schedule.set("a", 5.0)
    assert schedule.due(5.0, 10) == ["a"]
    for i in range(100):  # so many that the heap is rebuilt
        schedule.set("b", 10.0 + i)
    assert schedule.due(6.0, 10) == []
    schedule.set("a", 5.0)
    assert schedule.due(6.0, 10) == ["a"]


async def test_a_watch_that_broke_may_begin_again(store: PutGetStore) -> None:
    with mock.patch.object(store._retries, "watch", side_effect=RuntimeError), pytest.raises(RuntimeError):
        await Watcher(store).run()
    async with watching(store) as watcher:
        await read_one(store.log, QUEUE, 1)
        await put_one(store.log, QUEUE, b"x")
        await watcher.wakes(QUEUE)


async def test_a_put_that_fails_half_way_has_an_unknown_outcome() -> None:
    class Fragile(HoleyClient):
        async def put(self, queue: str, body: bytes) -> int:
            if body == b"bad":
                raise errors.StoreUnavailable("down")
            return await super().put(queue, body)

    store = open_on(Fragile())
    half, whole = await store.log.put([Put(QUEUE, [b"a", b"bad", b"c"]), Put("t/1/high", [b"d"])])
    assert isinstance(half, errors.OutcomeUnknown)
    assert "1 of 3 stored" in str(half)
    assert not isinstance(whole, Exception)
    assert list(whole) == [1]


async def test_a_trim_is_kept_by_the_instance_that_made_it(client: HoleyClient, store: PutGetStore) -> None:
    await put_one(store.log, QUEUE, b"a", b"b")
    await store.log.trim([Trim(QUEUE, 2, 1)])
    assert (await read_one(store.log, QUEUE, 1)).bodies == [b"b"]
    assert await ends(open_on(client).log, [QUEUE]) == [(1, 3)]


@pytest.mark.parametrize(
    ("name", "value"), [("max_queue_qps", 1.0), ("hole_window", 0), ("hole_grace_s", -1.0), ("poll_first_s", 9.0)]
)
def test_an_option_out_of_range_is_named(name: str, value: float) -> None:
    with pytest.raises(errors.InvalidSettings, match=f"{name} is {value}"):
        Options(**{name: value})  # type: ignore[arg-type]


async def test_a_storage_that_falls_silent_costs_a_call_its_deadline_and_no_more() -> None:
    class Silent(HoleyClient):
        silent = False

        async def put(self, queue: str, body: bytes) -> int:
            await asyncio.sleep(1e6 if self.silent else 0)
            return await super().put(queue, body)

        async def get(self, queue: str, offset: int) -> bytes | None:
            await asyncio.sleep(1e6 if self.silent else 0)
            return await super().get(queue, offset)

    client = Silent()
    store = open_on(client, Options(answer_s=2.0))
    await put_one(store.log, QUEUE, b"first")
    client.silent = True
    began = now()
    [answer] = await store.log.put([Put(QUEUE, [b"second"])])
    assert isinstance(answer, errors.OutcomeUnknown)
    assert now() - began < 4
    with pytest.raises(errors.StoreUnavailable, match="within 2 s"):
        await store.log.get(QUEUE, 1)
    assert now() - began < 8
    client.silent = False
    assert await store.log.get(QUEUE, 1) == b"first"
