"""Virtual time: an event loop whose time jumps to the next timer as soon as everybody waits."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from emq.runtime import pace

Select = Callable[[float | None], list[Any]]


class Outside(Protocol):
    """The part of the world that takes real time: threads and connections."""

    def wait(self, select: Select) -> list[Any]:
        """Wait for events from outside while virtual time stands still; return them, or an empty list."""


ROUNDS, ROUND_S = 10_000, 0.001
"""Some code asks again and again whether a time has come. So after `ROUNDS` rounds of the loop without a passing of
time, each further round takes `ROUND_S` seconds."""


class VirtualTime:
    """The time of one event loop, in seconds.

    If a callback is ready, it runs and time stands still. If nothing is ready, time jumps to the next timer. So an hour
    of sleeping passes at once, and the same callbacks run at the same times in every run.

    Args:
        begin_s: the time at first.
        least_s: seconds by which time goes on at least in each round of the loop without events.
        outside: the part that takes real time; None for nothing.
    """

    def __init__(self, begin_s: float = 0.0, least_s: float = 0.0, outside: Outside | None = None) -> None:
        self.now = begin_s
        self._least_s = least_s
        self._outside = outside
        self._rounds = 0

    def time(self) -> float:
        return self.now

    def select(self, select: Select, timeout: float | None) -> list[Any]:
        """Do what a selector's `select` does, in virtual time.

        Raises:
            RuntimeError: no timer is set and nothing comes from outside, so the loop would wait for ever.
        """
        found = select(0)
        if found or timeout == 0:
            self._count_round()
        elif self._outside is not None and (found := self._outside.wait(select)):
            return found
        if not found:
            if timeout is None:
                if self._outside is not None:
                    return select(None)  # another library's loop: nobody knows what it waits for
                raise RuntimeError("everything waits and no timer is set: this would hang for ever")
            self.now += max(timeout, self._least_s)
            if timeout:
                self._rounds = 0
        return found

    def _count_round(self) -> None:
        if self._outside is not None:
            self._rounds += 1
            if self._rounds > ROUNDS:
                self.now += ROUND_S

    def leap(self, until: float) -> None:
        """Let the time be `until` at once; timers that run out before then run late. Never goes back."""
        self.now = max(self.now, until)


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, virtual: VirtualTime) -> None:
        super().__init__()
        self._virtual = virtual

    def select(self, timeout: float | None = None) -> list[Any]:
        return self._virtual.select(super().select, timeout)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time from the start. Use no threads in it: time would not wait for them.

    Args:
        least_s: seconds by which time goes on at least in each round.
    """

    def __init__(self, least_s: float = 0.0) -> None:
        self._virtual = VirtualTime(least_s=least_s)
        super().__init__(_JumpingSelector(self._virtual))

    def time(self) -> float:
        return self._virtual.now


@contextlib.contextmanager
def installed(loop: asyncio.AbstractEventLoop, outside: Outside) -> Iterator[VirtualTime]:
    """Make the time of a running loop virtual for the length of the block.

    Virtual time begins at the loop's time. After the block the time goes on from there at the machine's pace, because
    an event loop's time must not go back.

    Raises:
        RuntimeError: the loop is not one of asyncio's own.
    """
    pace.begin_anew()
    selector = getattr(loop, "_selector", None)
    if not isinstance(loop, asyncio.SelectorEventLoop) or selector is None:
        kind = f"{type(loop).__module__}.{type(loop).__qualname__}"
        raise RuntimeError(f"emq_testing needs asyncio's own event loop for its virtual time; this test runs on {kind}")
    if isinstance(loop, VirtualLoop):
        yield loop._virtual
        return
    real_time, begin_s = loop.time, loop.time()
    virtual, real_select = VirtualTime(begin_s, outside=outside), selector.select
    loop.time = virtual.time  # type: ignore[method-assign]
    selector.select = lambda timeout=None: virtual.select(real_select, timeout)
    try:
        yield virtual
    finally:
        del selector.select
        ahead_s = virtual.now - real_time()
        loop.time = lambda: real_time() + ahead_s  # type: ignore[method-assign]
