"""Puts slow calls of a loop aside, so that the loop goes on with calls that other servers can answer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

SLOW_S = 0.25
"""Seconds after which a call is put aside."""

MOST = 8
"""Most calls of one loop that may be aside at once; then the loop waits."""

Call = Callable[[], Awaitable[None]]


class Asides:
    """Makes the calls of a loop that may run several times at once; see `Aside`.

    Calls outlive an error of the loop: the next run takes over the calls of the run that broke. After a cancellation,
    it takes over those that had not begun.

    Args:
        most: see `Aside`.
    """

    def __init__(self, most: int | None = MOST) -> None:
        self._most = most
        self._spare: list[Aside] = []

    async def run(self, following: Callable[[], Awaitable[Iterable[Call]]]) -> None:
        """See `Aside.run`."""
        aside = self._spare.pop() if self._spare else Aside(self._most)
        try:
            await aside.run(following)
        finally:
            self._spare.append(aside)


class Aside:
    """Makes the calls of one loop, one after the other.

    The calls run in one task, the *driver*. So a call that returns in time costs only a timer, and the next call begins
    without a turn of the event loop. When a call takes long, a new driver takes over; the old one ends with its call.

    Args:
        most: most calls that may be aside at once; None if they are bounded elsewhere.
    """

    def __init__(self, most: int | None = MOST) -> None:
        self._most = most
        self._tasks: set[asyncio.Task[None]] = set()
        self._calls: deque[Call] = deque()
        self._driver: asyncio.Task[None] | None = None
        self._relieved: asyncio.Future[None] | None = None

    async def run(self, following: Callable[[], Awaitable[Iterable[Call]]]) -> None:
        """Make call after call. Ends by cancellation, or with the error of any call, in the driver or aside.

        A cancellation cancels the calls. After an error the other calls go on, and the next run waits for them.

        Args:
            following: waits until there is work, and returns the calls that do the work, in their order.
        """
        loop = asyncio.get_running_loop()
        try:
            while True:
                self._relieved = loop.create_future()
                if self._driver is None and (self._most is None or len(self._tasks) <= self._most):
                    self._driver = loop.create_task(self._drive(following))
                    self._tasks.add(self._driver)
                await asyncio.wait({*self._tasks, self._relieved}, return_when=asyncio.FIRST_COMPLETED)
                self._collect()
        except asyncio.CancelledError:
            for task in self._tasks:
                task.cancel()
            self._tasks, self._driver = set(), None
            raise

    async def _drive(self, following: Callable[[], Awaitable[Iterable[Call]]]) -> None:
        loop, me = asyncio.get_running_loop(), asyncio.current_task()
        while self._driver is me:
            while not self._calls:
                self._calls.extend(await following())
            call = self._calls.popleft()
            slow = loop.call_later(SLOW_S, self._relieve, me)
            try:
                await call()
            finally:
                slow.cancel()

    def _relieve(self, driver: asyncio.Task[None] | None) -> None:
        """Let a new driver take over from `driver`, whose call takes long."""
        if self._driver is driver:
            self._driver = None
            if self._relieved is not None and not self._relieved.done():
                self._relieved.set_result(None)

    def _collect(self) -> None:
        done = [task for task in self._tasks if task.done()]
        self._tasks.difference_update(done)
        if self._driver in done:
            self._driver = None
        for task in done:
            if task.cancelled():  # something within a call was cancelled, not this loop
                raise RuntimeError("a call was cancelled from within")
            task.result()
