"""Calls awaited at the same time, made into few round trips."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from emq.durability import Durability

Item = TypeVar("Item")
Answer = TypeVar("Answer")

BATCH = 500
"""Items in one call."""

IN_FLIGHT = 2
"""Calls under way at once: the server works on one while the next is gathered."""


class Batcher(Generic[Item, Answer]):
    """Gathers items that are sent while earlier calls are under way. Belongs to one event loop.

    Args:
        call: takes up to `BATCH` items of one durability and answers for each, in order; an answer that is an exception
            is raised to its sender, and what the call raises, to all senders of its items.
    """

    def __init__(self, call: Callable[[Sequence[Item], Durability], Awaitable[Sequence[Answer | Exception]]]) -> None:
        self._call = call
        self._waiting: list[tuple[Item, Durability, asyncio.Future[Answer]]] = []
        self._under_way = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def send(self, item: Item, durability: Durability) -> Answer:
        """The answer for `item`. If this is cancelled, the item may or may not have been sent."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((item, durability, future))
        if self._under_way < IN_FLIGHT and (len(self._waiting) == 1 or len(self._waiting) >= BATCH):
            self._under_way += 1
            loop.call_soon(self._start)
        return await future

    def _start(self) -> None:
        task = asyncio.get_running_loop().create_task(self._flush())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _flush(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
                for durability in dict.fromkeys(d for _, d, _ in batch):
                    await self._send([(item, future) for item, d, future in batch if d is durability], durability)
        finally:
            self._under_way -= 1

    async def _send(self, batch: list[tuple[Item, asyncio.Future[Answer]]], durability: Durability) -> None:
        answers: Sequence[Answer | Exception]
        try:
            answers = await self._call([item for item, _ in batch], durability)
        except Exception as exc:  # also of a kind that a store must not raise, or its senders would wait for ever
            answers = [exc] * len(batch)
        except BaseException:
            for _, future in batch:
                future.cancel()
            raise
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
