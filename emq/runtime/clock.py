"""The clock that counters and the trail share.

The clock's time is an *anchor* plus the time that has passed by `CLOCK_BOOTTIME`, which goes on while a machine is
suspended. The anchor comes from the wall clock at first, and then from a `Timekeeper`, if there is one.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pathlib
import time
from collections.abc import Callable
from typing import Protocol

Nanoseconds = Callable[[], int]

boot_ns: Nanoseconds = (
    functools.partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    else time.monotonic_ns
)
"""Nanoseconds since the machine was started, suspended or not. On systems without such a clock, the monotonic clock,
which may stop while the machine is suspended."""

boot_s: Callable[[], float] = (
    functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
"""As `boot_ns`, in seconds, exact to less than a microsecond."""

LONGEST_TIMER_S = 1.0
"""Most seconds that a timer of the event loop may wait for a time of a `Clock`; then the waiting code looks at the
clock again. The loop's own time stands still while the machine is suspended, and corrections do not change it."""


def this_run() -> int:
    """Return a number for this run of this machine; processes of one number share one `boot_ns`. 0 if unknown."""
    try:
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        named = f"{boot}/{os.stat('/proc/self/ns/time').st_ino}"  # a container may have a clock of its own
    except OSError:
        return 0
    return int.from_bytes(hashlib.sha256(named.encode()).digest()[:7], "big")


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch; never goes back within one process."""

    def now_us(self) -> int:
        """As `now`, in whole microseconds."""

    def passed_us(self) -> int:
        """Microseconds since some time of its own, which no correction changes."""

    def at_us(self, passed_us: int) -> int:
        """Return the time of that past moment by the present anchor, with all corrections since."""


class SystemClock:
    """Time that never goes back, whatever happens to the wall clock.

    If the wall clock is set back, a counter must not see a second twice, or the second's quota would be spent twice.
    `adjust` corrects the clock: forward at once, backward by standing still until the time has come.

    Args:
        wall_ns, passed_ns: the wall clock, and a clock that goes on evenly; given by tests and simulations.
    """

    now: Callable[[], float]
    now_us: Callable[[], int]

    def __init__(self, wall_ns: Nanoseconds = time.time_ns, passed_ns: Nanoseconds = boot_ns) -> None:
        self._passed_ns = passed_ns
        self._go_on(wall_ns() // 1000 - passed_ns() // 1000)

    def _go_on(self, anchor_us: int, floor_us: int = 0) -> None:
        """Tell the time by this anchor from now on, but no time before the floor.

        Every message asks for the time, and closures cost a third less than methods that read attributes.
        """
        self._anchor_us = anchor_us
        passed_ns = self._passed_ns

        def now_us() -> int:
            return passed_ns() // 1000 + anchor_us

        def now_us_from_floor() -> int:
            told_us = now_us()
            return told_us if told_us > floor_us else floor_us

        tell_us = now_us_from_floor if floor_us > now_us() else now_us
        self.now_us = tell_us
        self.now = lambda: tell_us() / 1e6

    def passed_us(self) -> int:
        """Microseconds since some time of its own, which no correction changes."""
        return self._passed_ns() // 1000

    def at_us(self, passed_us: int) -> int:
        """See `Clock`."""
        return passed_us + self._anchor_us

    @property
    def anchor_us(self) -> int:
        """Microseconds that are added to `passed_us` to get the time."""
        return self._anchor_us

    def adjust(self, by_us: int) -> None:
        """Correct the clock by `by_us` microseconds; a negative number makes the clock stand still for that time."""
        self._go_on(self._anchor_us + by_us, self.now_us())

    def reset(self, anchor_us: int) -> None:
        """Set the clock, even back. Call this only before the clock is used."""
        self._go_on(anchor_us)
