"""Patience: the deadlines of calls to one server.

Each call has a deadline: twenty times the slowest of a hundred answers of this server, at least one second and at most
ten. A large call also gets the time that its bytes take (`sending_s`). A server that answers no call for a whole
deadline is *silent*. Then all calls that wait for it fail, further calls fail at once, unsent, and a PING goes to it
twice a second until it answers. So a server that hangs costs each caller one deadline, once, and callers of other
servers nothing. The deadline of a call begins when it is sent: at most `AT_ONCE` are under way.

Only time in which this process ran counts. One timer counts down the deadlines of all calls; a process that was held up
runs the timer once, not as often as it should have.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from operator import length_hint
from typing import Any, TypeVar

from emq.runtime import errors

T = TypeVar("T")

LEAST_S = 1.0
MOST_S = 10.0
"""Bounds of a deadline in seconds."""

TIMES = 20
"""Factor between the 99th percentile of the answer times and a deadline."""

REMEMBERED = 200
"""Number of the latest answer times from which the percentile is taken."""

MEASURED_EVERY = 64
"""Number of answers between two looks at the answer times."""

TICKS = 4
"""Number of steps in which a deadline is counted down."""

BYTES_PER_S = 4 << 20
"""Lowest rate at which a server is expected to take in and carry out a call, in bytes per second."""

AT_ONCE = 90
"""Most calls under way at a time; further ones wait for their turn. The driver has 100 connections to a server, and
refuses a call that needs one more. Some connections listen for wake-ups, or send a PING."""

LONG_AT_ONCE = 70
"""Most of these that are long, so that the reads of hosts do not wait behind thousands of long calls."""

LONG_S = 1.0
"""A call is long if the server is asked to wait for this many seconds, such as for a replica that may be gone."""

LARGE_S = 0.01
"""It is long, too, if its bytes may take this many seconds."""

PROBE_S = 0.5
"""Seconds between two PINGs to a silent server."""


class Patience:
    """Bounds the calls to one server. Belongs to one event loop.

    Args:
        server: address or URL of the server, for error texts.
        ping: sends a PING on a connection of its own.

    Attributes:
        deadline_s: the deadline of a call that is made now, in seconds.
    """

    def __init__(self, server: str, ping: Callable[[], Awaitable[object]]) -> None:
        self.deadline_s = LEAST_S
        self._least_s = LEAST_S
        self._server = server
        self._ping = ping
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._long_turns = asyncio.Semaphore(LONG_AT_ONCE)
        self._waiting: set[_Waiting] = set()
        self._ticker: asyncio.TimerHandle | None = None
        self._times_s: deque[float] = deque(maxlen=REMEMBERED)
        self._answers = 0
        self._probe: asyncio.Task[None] | None = None
        self._closed = False

    async def answer(self, call: Callable[[], Awaitable[T]], longer_s: float = 0.0, sending_s: float = 0.0) -> T:
        """Make a call and await its answer.

        Args:
            longer_s: seconds added to the deadline, because the server is asked to wait for something.
            sending_s: seconds added because the call is large.

        Raises:
            StoreUnavailable: the server is silent, or the store was closed; nothing was sent.
            OutcomeUnknown: the server did not answer in time.
        """
        is_long = longer_s >= LONG_S or sending_s >= LARGE_S
        async with self._long_turns if is_long else contextlib.nullcontext(), self._turns:
            return await self._answer(call, longer_s, sending_s)

    async def _answer(self, call: Callable[[], Awaitable[T]], longer_s: float, sending_s: float) -> T:
        if self._probe is not None:
            raise errors.StoreUnavailable(f"{self._server} does not answer; it is asked again every {PROBE_S:g} s")
        if self._closed:
            raise errors.StoreUnavailable(f"the connection to {self._server} is closed; open the store again")
        loop = asyncio.get_running_loop()
        deadline_s = self.deadline_s + longer_s + sending_s
        began, waiting = loop.time(), _Waiting(asyncio.timeout(None), self._answers, deadline_s)
        task = asyncio.current_task()
        cancelled = task.cancelling() if task is not None else 0
        try:
            async with waiting.scope:
                self._waiting.add(waiting)
                if self._ticker is None:
                    self._ticker = loop.call_later(self.deadline_s / TICKS, self._tick)
                is_answer = True
                try:
                    return await call()
                except asyncio.CancelledError:
                    is_answer = False
                    raise
                finally:
                    self._waiting.discard(waiting)
                    if is_answer:
                        self._answered(None if longer_s else loop.time() - began)
                    if task is not None and task.cancelling() > cancelled + waiting.is_over:
                        # Before Python 3.12, `asyncio.wait_for`, by which the driver sends, loses a cancellation that
                        # comes as it ends. The caller would go on for ever.
                        raise asyncio.CancelledError
        except TimeoutError as exc:
            if not waiting.is_over:
                raise
            raise errors.OutcomeUnknown(f"{self._server} did not answer a call in time ({deadline_s:.1f} s)") from exc

    async def close(self) -> None:
        """End the timer and the PINGs, and all calls that wait: nothing bounds them from now on."""
        self._closed = True
        for waiting in self._waiting:
            waiting.end()
        if self._ticker is not None:
            self._ticker.cancel()
        if self._probe is not None:
            self._probe.cancel()
            await asyncio.gather(self._probe, return_exceptions=True)

    def _answered(self, took_s: float | None) -> None:
        """Note that the server answered, even if it only refused."""
        self._answers += 1
        if took_s is not None:
            self._times_s.append(took_s)
        if self._answers % MEASURED_EVERY == 0:
            self._least_s = max(LEAST_S, self._least_s / 2)
            self._measure()

    def _measure(self) -> None:
        slow_s = sorted(self._times_s)[len(self._times_s) * 99 // 100] if self._times_s else 0.0
        self.deadline_s = min(MOST_S, max(self._least_s, TIMES * slow_s))

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        step_s = self.deadline_s / TICKS
        silent = False
        for waiting in self._waiting:
            waiting.left_s -= step_s
            if waiting.left_s <= 0:
                waiting.end()
                # If the server answered others meanwhile, this one call is slow, or lost.
                silent = silent or waiting.answers_before == self._answers
        if silent:
            for waiting in self._waiting:
                waiting.end()
            if self._probe is None:
                self._probe = loop.create_task(self._ask())
        self._ticker = loop.call_later(step_s, self._tick) if self._waiting else None

    async def _ask(self) -> None:
        """Send PINGs until the server answers anything.

        A server that answers the first PING was slow, not silent: double the least deadline.
        """
        asked = 0
        while True:
            asked += 1
            try:
                async with asyncio.timeout(LEAST_S):
                    await self._ping()
            except TimeoutError:
                await asyncio.sleep(PROBE_S)
                continue
            except Exception:  # any error is an answer; the next call gets the details
                pass
            if asked == 1:
                self._least_s = min(MOST_S, 2 * self._least_s)
                self._measure()
            self._probe = None
            return


def sending_s(words: Iterable[Any]) -> float:
    """Return the seconds that a server may take for the bytes of a command, beyond its time for any call."""
    return sum(map(length_hint, words)) / BYTES_PER_S  # 0 of a number


@dataclass(slots=True, eq=False)
class _Waiting:
    """A call that waits for its answer.

    Attributes:
        answers_before: the number of answers that the server had given when the call was sent.
        left_s: seconds until the deadline.
    """

    scope: asyncio.Timeout
    answers_before: int
    left_s: float
    is_over: bool = False

    def end(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.scope.reschedule(asyncio.get_running_loop().time())
