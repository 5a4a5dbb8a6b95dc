"""What keeps the data of a simulation tells what it holds, and comes back as it was."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator

import pytest

from emq.storage import lane_store, log_store, slot_store
from emq.storage.slot_store import Slot, SlotKind
from support.simulation.keepers import LEFT_OUT, Contents, Keep, Keeper, keeping
from support.virtual import LoopClock, VirtualLoop

QUEUE, LANE, SLOT = "t/0/high", "t/0", Slot("s/0", SlotKind.FIXED_TIME)
DUE_MS = 1_700_000_000_000

Run = Callable[[Callable[[Keeper], Coroutine[None, None, None]]], None]


@pytest.fixture(params=[name for name, left_out in LEFT_OUT.items() if "store_shorter" not in left_out])
def keep(request: pytest.FixtureRequest) -> Iterator[Keep]:
    """Of the stores that can lose their last writes."""
    if request.param == "redis":
        request.getfixturevalue("redis_server")
    with keeping(request.param) as found:
        yield found


@pytest.fixture
def run(keep: Keep) -> Run:
    def carry_out(test: Callable[[Keeper], Coroutine[None, None, None]]) -> None:
        async def over_a_keeper() -> None:
            keeper = keep.keeper(LoopClock())
            try:
                await test(keeper)
            finally:
                keeper.close()

        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(over_a_keeper())

    return carry_out


async def _fill(keeper: Keeper) -> None:
    store = keeper.open()
    await store.log.put([log_store.Put(QUEUE, [b"1", b"2", b"3"])])
    await store.log.trim([log_store.Trim(QUEUE, 2, None)])
    await store.lanes.add(
        [lane_store.LaneAdd(LANE, "waits", b"one", DUE_MS), lane_store.LaneAdd(LANE, "dead", b"two", DUE_MS, "why")]
    )
    await store.sorted.add(
        [slot_store.SlotAdd(SLOT, member, DUE_MS, slot_store.Keep.FIRST) for member in (b"member", b"another")]
    )
    await store.sorted.claim([slot_store.SlotClaim(SLOT, 1, 1, DUE_MS)], DUE_MS)


def test_it_tells_all_that_it_holds(run: Run) -> None:
    async def test(keeper: Keeper) -> None:
        await _fill(keeper)
        assert keeper.head_of(QUEUE) == 2
        queues, lanes, members = keeper.contents()
        assert queues == {QUEUE: (4, {2: b"2", 3: b"3"})}
        assert lanes == {"waits": b"one", "dead": b"two"}
        assert {name: sorted(found) for name, found in members.items()} == {SLOT.name: [b"another", b"member"]}

    run(test)


def test_it_comes_back_as_it_was_or_empty_and_watchers_hear_of_it(run: Run) -> None:
    async def test(keeper: Keeper) -> None:
        watch = keeper.store.watch()
        heard: list[object] = []

        async def listen() -> None:
            async for names in watch:
                heard.append(names)

        listener = asyncio.create_task(listen())
        await _fill(keeper)
        before, kept = keeper.contents(), keeper.snapshot()
        await keeper.store.log.put([log_store.Put(QUEUE, [b"4"]), log_store.Put("t/1/high", [b"5"])])
        assert keeper.contents() != before
        await asyncio.sleep(1.0)
        heard.clear()
        keeper.restore(kept)
        assert keeper.contents() == before
        await asyncio.sleep(1.0)
        assert heard == [None]
        keeper.restore(None)
        assert keeper.contents() == Contents({}, {}, {})
        listener.cancel()
        await asyncio.wait([listener])

    run(test)
