"""Turns calls that are awaited at the same time into few round trips."""

from __future__ import annotations

import asyncio
import bisect
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from emq.producer.outcomes import in_doubt
from emq.runtime import errors, plurals
from emq.storage.durability import Durability

Item = TypeVar("Item")
Answer = TypeVar("Answer")

BATCH = 500
"""Most items in one call."""

CALL_BYTES = 8 << 20
"""Most bytes in one call, if calls are bounded in bytes: round trips hardly count, and every store takes as much."""

IN_FLIGHT = 2
"""Most calls under way at once: the server works on one while the next one fills."""


def fitting(sizes: Sequence[int]) -> int:
    """Return how many of the first items fit into one call: `CALL_BYTES` in all, but at least one item."""
    if sum(sizes) <= CALL_BYTES:
        return len(sizes)
    return max(1, bisect.bisect_right(list(itertools.accumulate(sizes)), CALL_BYTES))


class Batcher(Generic[Item, Answer]):
    """Gathers items that are sent while earlier calls are under way. Belongs to one event loop.

    Args:
        call: takes up to `BATCH` items of one durability and returns an answer for each, in order. An answer that is an
            exception is raised to its sender; an exception that the call raises, to the senders of all its items.
    """

    def __init__(self, call: Callable[[Sequence[Item], Durability], Awaitable[Sequence[Answer | Exception]]]) -> None:
        self._call = call
        self._waiting: list[tuple[Item, Durability, asyncio.Future[Answer], int]] = []
        self._under_way = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def send(self, item: Item, durability: Durability, size: int) -> Answer:
        """Send `item`, of `size` bytes, and return its answer. A call takes at most `CALL_BYTES`, or a single item.

        If the caller is cancelled before the item's call begins, the item is not sent; later, it may or may not be.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((item, durability, future, size))
        if self._under_way < IN_FLIGHT and (len(self._waiting) == 1 or len(self._waiting) >= BATCH):
            self._under_way += 1
            loop.call_soon(self._start)
        return await future

    async def close(self) -> None:
        """Wait for the calls under way, and those about to begin."""
        while self._under_way:
            await (asyncio.wait(self._tasks) if self._tasks else asyncio.sleep(0))

    def _start(self) -> None:
        task = asyncio.get_running_loop().create_task(self._flush())
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._under_way -= 1
        if task.cancelled() or task.exception() is not None:  # the event loop ends: no sender may wait for ever
            for _, _, future, _ in self._waiting:
                future.cancel()
            self._waiting = []
        elif self._waiting:  # they came after the last look of the task
            self._under_way += 1
            self._start()

    async def _flush(self) -> None:
        while self._waiting:
            batch = self._waiting[:BATCH]
            batch = batch[: fitting([size for _, _, _, size in batch])]
            self._waiting = self._waiting[len(batch) :]
            wanted = [(item, d, future) for item, d, future, _ in batch if not future.done()]
            try:
                for durability in dict.fromkeys(d for _, d, _ in wanted):
                    await self._send([(item, f) for item, d, f in wanted if d is durability], durability)
            except BaseException:
                self._waiting = [*batch, *self._waiting]
                raise

    async def _send(self, batch: list[tuple[Item, asyncio.Future[Answer]]], durability: Durability) -> None:
        answers: Sequence[Answer | Exception]
        try:
            answers = await self._call([item for item, _ in batch], durability)
            if len(answers) != len(batch):
                raise errors.OutcomeUnknown(
                    f"the store gave {plurals.count(len(answers), 'answer')} for {plurals.count(len(batch), 'message')}"
                )
        except asyncio.CancelledError as exc:
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            answers = [in_doubt(exc)] * len(batch)  # something within the call was cancelled
        except Exception as exc:  # even an error that a store must not raise: else the senders would wait for ever
            answers = [exc] * len(batch)
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
