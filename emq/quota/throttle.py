"""Throttles: a handler lets its topic use less than its quota on one host for a while, or nothing.

A quota is what the topic may use at most. A throttle is what it should use now, because an endpoint has asked for a
pause or answers badly. Messages that a throttle holds back are *parked*: they stay where they are, in their order, and
use neither an attempt nor a start of the quota.
"""

from __future__ import annotations

import math

from emq.quota.bucket import Bucket
from emq.quota.counter import Counter, LimitedCounter

PROBE_AGAIN_S = 60.0
"""Seconds until the next probe, if the handler has said nothing about the last one."""

UNLIMITED = 1 << 30
"""Starts that a throttle that is over allows at once."""

BURST_S = 0.1
"""Seconds of a limited rate whose starts may pile up beside a first one: a dispatcher that wakes late loses none."""


class Throttle:
    """Limits the starts of one topic on this host, within its quota. Times are seconds since the epoch.

    States: *closed* until `until` (nothing starts); then *probing* (one message starts, the next one when the handler
    changes the throttle, or after `PROBE_AGAIN_S`); *limited* to `rate` starts a second; *paused* until `until`, then
    limited as before, or *over* if there was no throttle before. A topic without a limit has no throttle.

    Attributes:
        until: time until which nothing starts; 0 while limited.
        reason: why, in words for an operator.
        since: time since which the throttle is in this state.
    """

    __slots__ = ("_before", "_bucket", "_probed_at", "reason", "since", "until")

    def __init__(self) -> None:
        self.until = self.since = 0.0
        self.reason = ""
        self._bucket: Bucket[float] | None = None  # only while limited
        self._probed_at: float | None = None
        self._before: tuple[float, str] | None = None  # while paused: the rate before, and its reason

    @property
    def rate(self) -> float:
        """The most starts a second; infinity while closed, probing or paused."""
        return math.inf if self._bucket is None else self._bucket.rate

    @property
    def is_limited(self) -> bool:
        return self._bucket is not None

    def is_over(self, now: float) -> bool:
        """Return True if a pause has ended and the topic had no throttle before it."""
        self._end_pause(now)
        return self._before is not None and now >= self.until

    def close(self, until: float, reason: str, now: float) -> None:
        """Start nothing until `until`, then one message as a probe."""
        self._bucket, self.until, self.reason, self.since = None, until, reason, now
        self._probed_at = self._before = None

    def pause(self, until: float, reason: str, now: float, *, is_new: bool = False) -> None:
        """Start nothing until `until`, then go on as before; forget a probe that is under way.

        Args:
            is_new: True if the topic had no throttle before.
        """
        self._end_pause(now)
        if is_new or self.is_limited:
            self._before = (self.rate, self.reason)
            self._bucket, self.until, self.since = None, until, now
            self.reason = reason
        self.until, self._probed_at = max(self.until, until), None

    def limit(self, rate: float, reason: str, now: float) -> None:
        """Start at most `rate` messages a second, above 0."""
        if self._bucket is None:
            self._begin(rate, now)
        else:
            self._bucket.follow(rate, _most(rate), now)
        self.until, self.reason, self._before = 0.0, reason, None

    def room(self, now: float) -> int:
        """Return how many messages may start now."""
        if self._before is not None and self.is_over(now):
            return UNLIMITED
        if self._bucket is None:
            return int(self._may_probe_at() <= now)
        return int(self._bucket.fill(now))

    def take(self, n: int, now: float) -> None:
        """Note that `n` of the messages that `room` allowed start."""
        if self._bucket is not None:
            self._bucket.take(n)
        elif n and self._before is None:
            self._probed_at = now

    def give_back(self, n: int, at: float) -> None:
        """Take back `n` starts that were noted at the time `at` and not made."""
        if self._bucket is not None:
            if at >= self.since:  # else they are of another state
                self._bucket.take(-n)
        elif self._probed_at == at:
            self._probed_at = None

    def next_at(self, now: float) -> float:
        """Return when `room` allows a start; call this while it allows none."""
        if self._bucket is not None:
            return now + self._bucket.wait(1.0)
        return self._may_probe_at()

    def _end_pause(self, now: float) -> None:
        """Go back to the limit from before the pause, if there was one and the pause is over."""
        if self._before is not None and now >= self.until and self._before[0] != float("inf"):
            (rate, self.reason), self._before = self._before, None
            self.until = 0.0
            self._begin(rate, now)

    def _begin(self, rate: float, now: float) -> None:
        self._bucket, self.since = Bucket(rate, _most(rate), min(1.0, rate), now), now

    def _may_probe_at(self) -> float:
        return self.until if self._probed_at is None else max(self.until, self._probed_at + PROBE_AGAIN_S)


def _most(rate: float) -> float:
    return 1.0 + rate * BURST_S


class ThrottledCounter(LimitedCounter):
    """A group's counter below a throttle, which all groups of the topic on this host share."""

    __slots__ = ("_throttle",)

    def __init__(self, counter: Counter, throttle: Throttle) -> None:
        super().__init__(counter)
        self._throttle = throttle

    def reserve(self, n: int, now: float) -> int:
        granted = self.counter.reserve(min(n, self._throttle.room(now)), now)
        self._throttle.take(granted, now)
        return granted

    def available(self, now: float) -> int:
        return min(self.counter.available(now), self._throttle.room(now))

    def release(self, n: int, at: float) -> None:
        self.counter.release(n, at)
        self._throttle.give_back(n, at)

    def next_at(self, now: float) -> float:
        if self._throttle.room(now):
            return self.counter.next_at(now)
        held = self._throttle.next_at(now)
        return held if self.counter.available(now) else max(held, self.counter.next_at(now))
