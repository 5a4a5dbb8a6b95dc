"""Remembers what this instance knows of each queue, and probes the storage with GETs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field
from typing import Any

from emq_stores.put_get.client import Options, PutGetClient
from emq_stores.put_get.limits import QueueLimits


@dataclass(slots=True, eq=False)
class QueueProbe:
    """This instance's knowledge of one queue.

    Attributes:
        head: first offset that this instance has not trimmed.
        reach: one above the highest offset at which a message was seen.
        ahead: bodies that were fetched and not handed out yet, by offset.
        missing_since: loop time at which an offset below `reach` was first found missing, by offset.
        position: the offset at which the last read found the queue exhausted.
        polls: polls since then that found nothing.
        surveyed: True once the whole window above `position` was looked at.
    """

    head: int
    reach: int = field(init=False)
    ahead: dict[int, bytes] = field(default_factory=dict)
    missing_since: dict[int, float] = field(default_factory=dict)
    position: int = -1
    polls: int = 0
    surveyed: bool = False
    sealed: bool = False
    layout: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.reach = self.head

    def start_again(self, first_offset: int) -> None:
        """Forget all about the queue, since the storage has lost messages."""
        self.reach = max(first_offset, self.head)
        self.ahead.clear()
        self.missing_since.clear()
        self.position = -1
        self.polls = 0
        self.surveyed = False

    def forget_below(self, offset: int) -> None:
        """Forget the offsets below `offset`, which nobody will read again."""
        for memory in (self.ahead, self.missing_since):
            for old in [known for known in memory if known < offset]:
                del memory[old]

    def is_hole(self, offset: int, grace_s: float) -> bool:
        """Return True if an offset that a GET has just missed has been missing for at least `grace_s`."""
        since = self.missing_since.get(offset)
        return since is not None and asyncio.get_running_loop().time() - since >= grace_s

    def note_missing(self, offset: int, now: float) -> None:
        """Start the grace of a missing offset, if a message above shows that the offset is not the tail."""
        if offset < self.reach:
            self.missing_since.setdefault(offset, now)


class Prober:
    """GETs messages under each queue's cap, and searches for a queue's tail."""

    def __init__(self, client: PutGetClient, options: Options, limits: QueueLimits) -> None:
        self._client = client
        self._options = options
        self._limits = limits
        self._slots = asyncio.Semaphore(options.concurrency)

    async def get(self, queue: str, known: QueueProbe, offset: int) -> bytes | None:
        await self._limits.acquire(queue)
        async with self._slots:
            body = await self._client.get(queue, offset)
        if body is not None:
            known.reach = max(known.reach, offset + 1)
            known.missing_since.pop(offset, None)
        return body

    async def fetch(self, queue: str, known: QueueProbe, offsets: Iterable[int]) -> list[int]:
        """GET these offsets at once into `known.ahead`; return the missing ones."""
        wanted = [offset for offset in offsets if offset not in known.ahead]
        bodies = await gather(self.get(queue, known, offset) for offset in wanted)
        now = asyncio.get_running_loop().time()
        missing = []
        for offset, body in zip(wanted, bodies, strict=True):
            if body is None:
                missing.append(offset)
                known.note_missing(offset, now)
            else:
                known.ahead[offset] = body
        return missing

    async def tail(self, queue: str, known: QueueProbe) -> int:
        """Return the first offset from which on there is no message: gallop up, then halve.

        This costs about a window of GETs if nothing is new, and a few GETs for each doubling of the new messages.
        """
        low = max(known.reach, known.head)
        step = 1
        if not await self._any_from(queue, known, low):
            return low
        # From here on, a message is right below `low`, and after the loop none is in the window from `high` on.
        low = known.reach
        while await self._any_from(queue, known, high := low + step):
            low = known.reach
            step *= 2
        while low < high:
            middle = (low + high) // 2
            if await self._any_from(queue, known, middle):
                low = known.reach
            else:
                high = middle
        return low

    async def _any_from(self, queue: str, known: QueueProbe, offset: int) -> bool:
        """Return whether a message is in the window from `offset` on; raise `known.reach` above a message found."""
        if await self.get(queue, known, offset) is not None:
            return True
        window = range(offset + 1, offset + self._options.hole_window + 1)
        return any(body is not None for body in await gather(self.get(queue, known, at) for at in window))


async def gather(calls: Iterable[Awaitable[Any]]) -> list[Any]:
    """Like `asyncio.gather`, but if one call fails or the caller is cancelled, all calls have ended on return."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
