"""What the harnesses of one event loop share: virtual time, the work outside, and the leaps over idle times."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import datetime
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from emq_testing import left as rest
from emq_testing.left import Left
from emq_testing.outside import RealWork
from emq_testing.record import Record
from emq_testing.virtual_time import VirtualTime, installed

if TYPE_CHECKING:
    from emq import App
    from emq.host.host import Host

ROUNDS = 100
"""Most rounds of the event loop for which a look at the work left waits."""

LEAD_S = 2.0
"""Virtual seconds before the next due time at which a leap ends, so that the loops of the hosts are on time again."""

of_engine: contextvars.ContextVar[bool] = contextvars.ContextVar("emq_testing_engine", default=False)
"""True in the engine's own tasks and timers; False in handlers and in the test."""

_open: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Together] = weakref.WeakKeyDictionary()


class Running(NamedTuple):
    """An app that a harness runs."""

    app: App
    record: Record
    host: Host


class Look(NamedTuple):
    """The work that was left in each running app at one moment."""

    found: Sequence[tuple[Running, list[Left]]]

    def of(self, app: App) -> list[Left]:
        return next(left for running, left in self.found if running.app is app)

    @property
    def is_due(self) -> bool:
        """True while messages of any app wait that may start now."""
        return any(one.is_due for _, left in self.found for one in left)


class Together:
    """The harnesses that are open in one event loop.

    Attributes:
        outside: the part of the world that takes real time.
        changed: set when any of the engines reports something.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.users = 0
        self.outside = RealWork(loop, self._expects_answers)
        self.changed = asyncio.Event()
        self._loop: Any = loop
        self._apps: list[Running] = []
        self._ends: list[float] = []
        self._handling = 0
        self._wall_ns: Callable[[], int] | None = None
        self._time: VirtualTime
        self._stack = contextlib.ExitStack()

    def install(self) -> None:
        """Make the time of the event loop virtual, until `close`."""
        self._time = self._stack.enter_context(installed(self._loop, self.outside))
        self._stack.enter_context(self.outside.counting())

    def close(self) -> None:
        self._stack.close()

    def wall(self, start: datetime.datetime | None) -> Callable[[], int]:
        """Return a clock that begins at `start`, in nanoseconds since the epoch.

        Without a start, it is the clock of the harness that was opened first, or begins at the machine's time.
        """
        if start is None and self._wall_ns is not None:
            return self._wall_ns
        virtual, begun_s = self._time, self._time.now
        begin_s = time.time() if start is None else start.timestamp()
        begin_ns = int(begin_s) * 1_000_000_000 + 250_000_000

        def wall_ns() -> int:
            # In whole microseconds: the fractions of the loop's time differ from run to run.
            return begin_ns + round((virtual.now - begun_s) * 1e6) * 1000

        self._wall_ns = self._wall_ns or wall_ns
        return wall_ns

    @contextlib.contextmanager
    def minding(self, running: Running) -> Iterator[None]:
        """Let no leap pass over what the app has to do."""
        self._apps.append(running)
        try:
            yield
        finally:
            self._apps.remove(running)

    @contextlib.contextmanager
    def passing(self, until: float) -> Iterator[None]:
        """The test itself waits for nothing but the time, at most until this time of the loop; no leap goes beyond."""
        self._ends.append(until)
        try:
            yield
        finally:
            self._ends.remove(until)

    @contextlib.contextmanager
    def handling(self) -> Iterator[None]:
        """A handler runs."""
        self._handling += 1
        self.outside.stirred()
        try:
            yield
        finally:
            self._handling -= 1

    def _expects_answers(self) -> bool:
        """Return whether a handler, or the test itself, may wait for a connection."""
        return not self._ends or self._handling > 0

    async def look(self) -> Look:
        """Return the work left, once the hosts know all topics and the ready callbacks have run."""
        for running in self._apps:
            await running.host.catalog.look()  # a leap would delay the host's own look
        for _ in range(ROUNDS):
            if not self._loop._ready:
                break
            await asyncio.sleep(0)
        self.changed.clear()
        return Look([(running, await rest.look(running.app, running.record)) for running in self._apps])

    async def next_change(self, until: float) -> None:
        """Wait until an engine reports something, at most until this time of the loop."""
        token = of_engine.set(True)  # the timer of this wait holds up no leap of another harness
        try:
            async with asyncio.timeout_at(until):
                await self.changed.wait()
        except TimeoutError:
            pass
        finally:
            of_engine.reset(token)

    def leap(self, look: Look) -> None:
        """Skip the idle rounds of the engines: leap to shortly before the next event.

        The next event is a due time, or a timer of the test, of a handler, or of a task that a handler started.
        """
        timers = [
            timer.when()
            for timer in self._loop._scheduled
            if not timer.cancelled() and not timer._context.get(of_engine)
        ]
        if self._loop._ready or not all(self._may_leap(running.host, left, timers) for running, left in look.found):
            return
        until = min(self._ends)
        for running, left in look.found:
            ahead_s = self._loop.time() - running.app.clock.now() - LEAD_S
            until = min([until, *(one.next_due_ms / 1000 + ahead_s for one in left if one.next_due_ms is not None)])
        self._time.leap(min([until, *timers]))

    def _may_leap(self, host: Host, left: Sequence[Left], timers: Sequence[float]) -> bool:
        if any(one.is_due or (one.later and one.next_due_ms is None) for one in left):
            return False
        running = [one.topic for one in left if one.in_flight]
        owned = host.ownership.owned
        # The timer of `handler_timeout_s` counts as the engine's own.
        timed = any(owned[topic].topic.options.handler_timeout_s is not None for topic in running if topic in owned)
        return not running or bool(timers and not timed and not self.outside.is_at_work())


@contextlib.contextmanager
def joined(patience_s: float) -> Iterator[Together]:
    """Share the running event loop's virtual time with the other harnesses; the first makes it, the last ends it.

    Raises:
        RuntimeError: the event loop is not one of asyncio's own.
    """
    loop = asyncio.get_running_loop()
    together = _open.get(loop)
    if together is None:
        together = Together(loop)
        together.install()
        _open[loop] = together
    together.users += 1
    together.outside.patience_s = max(together.outside.patience_s, patience_s)
    try:
        yield together
    finally:
        together.users -= 1
        if not together.users:
            del _open[loop]
            together.close()
