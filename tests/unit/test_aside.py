"""Calls that take long step aside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from emq.runtime.aside import MOST, SLOW_S, Aside, Asides, Call
from support.virtual import virtual


class Work:
    """Gives a loop its calls: each name once, and notes which were made."""

    def __init__(self, *names: str, most: int | None = MOST) -> None:
        self.names = list(names)
        self.made: list[str] = []
        self.released = asyncio.Event()
        self.task = asyncio.create_task(Aside(most).run(self.following))

    async def following(self) -> list[Call]:
        if not self.names:
            await asyncio.Event().wait()
        names, self.names = self.names[:2], self.names[2:]
        return [partial(self.call, name) for name in names]

    async def call(self, name: str) -> None:
        self.made.append(name)
        if name.startswith("slow"):
            await self.released.wait()
        if name.endswith("broken"):
            raise ValueError(name)

    async def end(self) -> None:
        self.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self.task


@virtual
async def test_a_call_that_takes_long_holds_up_neither_its_own_batch_nor_the_next() -> None:
    work = Work("slow 1", "a", "slow 2", "b", "c")
    await asyncio.sleep(SLOW_S / 2)
    assert work.made == ["slow 1"]
    await asyncio.sleep(2 * SLOW_S)
    assert work.made == ["slow 1", "a", "slow 2", "b", "c"]
    await work.end()


@virtual
async def test_with_as_many_aside_as_may_be_the_loop_waits_for_one_of_them() -> None:
    work = Work(*(f"slow {i}" for i in range(9)), most=3)
    await asyncio.sleep(60)
    assert len(work.made) == 4
    work.released.set()
    await asyncio.sleep(1)
    assert len(work.made) == 9
    await work.end()


@virtual
async def test_what_a_call_raises_ends_the_loop_also_from_aside() -> None:
    for names in (("a", "broken"), ("slow broken", "b")):
        work = Work(*names)
        await asyncio.sleep(1)
        assert work.made == list(names)
        work.released.set()
        with pytest.raises(ValueError, match="broken"):
            await work.task


@virtual
async def test_the_end_of_the_loop_ends_what_is_aside() -> None:
    work = Work("slow 1", "slow 2")
    await asyncio.sleep(1)
    await work.end()
    await asyncio.sleep(0)
    assert {task.get_coro() for task in asyncio.all_tasks()} == {asyncio.current_task().get_coro()}  # type: ignore[union-attr]


async def test_no_turn_of_the_event_loop_passes_between_calls_that_return_in_time() -> None:
    turns: list[int] = []
    turn = 0
    left = 3

    async def call() -> None:
        await asyncio.sleep(0.01)
        turns.append(turn)

    async def following() -> list[Callable[[], object]]:
        nonlocal left
        turns.append(turn)
        left -= 1
        if left < 0:
            await asyncio.Event().wait()
        return [call]

    def count() -> None:
        nonlocal turn
        turn += 1
        asyncio.get_running_loop().call_soon(count)

    count()
    task = asyncio.create_task(Aside().run(following))  # type: ignore[arg-type]
    await asyncio.sleep(0.2)
    ended, asked = turns[1::2], turns[2::2]
    assert len(ended) == len(asked) == 3
    assert ended == asked
    task.cancel()


@virtual
async def test_after_an_error_the_next_run_has_what_the_last_one_had_taken() -> None:
    asides, made, released = Asides(), [], asyncio.Event()

    async def call(name: str) -> None:
        if name == "slow":
            await released.wait()
        if name == "broken":
            raise ValueError(name)
        made.append(name)

    batches = [["slow", "broken", "a", "b"]]

    async def following() -> list[Call]:
        if not batches:
            await asyncio.Event().wait()
        return [partial(call, name) for name in batches.pop()]

    with pytest.raises(ValueError, match="broken"):
        await asides.run(following)
    assert made == []
    again = asyncio.create_task(asides.run(following))
    await asyncio.sleep(1)
    assert made == ["a", "b"], "what was taken with the call that broke is done"
    released.set()
    await asyncio.sleep(1)
    assert made == ["a", "b", "slow"], "and what was aside goes on"
    again.cancel()
    await asyncio.gather(again, return_exceptions=True)


@virtual
async def test_a_call_that_is_cancelled_from_within_is_an_error_and_no_end() -> None:
    async def call() -> None:
        raise asyncio.CancelledError

    async def following() -> list[Call]:
        return [call]

    with pytest.raises(RuntimeError, match="cancelled from within"):
        await Aside().run(following)


@virtual
async def test_calls_that_had_not_begun_when_their_loop_was_cancelled_are_made_by_the_next_run() -> None:
    work, asides = Work(), Asides()
    await work.end()
    work.names = ["slow", "a"]
    for _ in range(2):
        running = asyncio.create_task(asides.run(work.following))
        await asyncio.sleep(SLOW_S / 2)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert work.made == ["slow", "a"]
