"""Submits awaited at the same time share one call to the store."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from emq.runtime import errors
from emq_scheduling.submitting import Receipt, Submission

MOST = 500
"""Most tasks of one call."""

AT_ONCE = 2
"""Calls under way at a time; further tasks wait and share the next call."""

Outcomes: TypeAlias = list[Receipt | errors.EMQError]
_Entry: TypeAlias = tuple[Submission, "asyncio.Future[Receipt]"]


class Together:
    """Collects single tasks of one pool.

    Args:
        send: submits many, and returns the outcome of each.
    """

    def __init__(self, send: Callable[[Sequence[Submission]], Awaitable[Outcomes]]) -> None:
        self._send = send
        self._waiting: deque[_Entry] = deque()
        self._calls: set[asyncio.Task[None]] = set()

    async def submit(self, submission: Submission) -> Receipt:
        """Submit one task; raises what `Submitter.submit` returns or raises for it.

        A task whose caller is cancelled before its call begins is not submitted.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Receipt] = loop.create_future()
        self._waiting.append((submission, future))
        if len(self._waiting) == 1:
            loop.call_soon(self._begin)  # other submits of this turn of the event loop come along
        return await future

    async def close(self) -> None:
        """Wait for the calls under way."""
        while self._calls:
            await asyncio.gather(*self._calls, return_exceptions=True)

    def _begin(self) -> None:
        while self._waiting and len(self._calls) < AT_ONCE:
            some = [self._waiting.popleft() for _ in range(min(MOST, len(self._waiting)))]
            call = asyncio.get_running_loop().create_task(self._call(some), name="emq submit")
            self._calls.add(call)
            call.add_done_callback(functools.partial(self._ended, some))

    def _ended(self, entries: list[_Entry], call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        for _, future in entries if call.cancelled() else ():  # before it began, for one
            future.cancel()
        self._begin()

    async def _call(self, entries: list[_Entry]) -> None:
        entries = [(submission, future) for submission, future in entries if not future.done()]
        if not entries:
            return
        try:
            outcomes: Sequence[Receipt | BaseException] = await self._send([submission for submission, _ in entries])
        except BaseException as exc:
            outcomes = [exc] * len(entries)
        for (_, future), outcome in zip(entries, outcomes, strict=True):
            if future.done():
                continue
            if isinstance(outcome, Receipt):
                future.set_result(outcome)
            elif isinstance(outcome, asyncio.CancelledError):
                future.cancel()
            else:
                future.set_exception(outcome)
