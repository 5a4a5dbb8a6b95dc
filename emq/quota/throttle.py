"""Throttles: a topic uses less than its quota on one host for a while, or nothing, as its handler has found out.

A quota is what the topic may use at most. A throttle is what it should use now, because an endpoint has asked for a
pause or answers badly. Messages that a throttle holds back are *parked*: they stay where they are, in their order, and
use neither an attempt nor a start of the quota.
"""

from __future__ import annotations

from emq.quota.counter import Counter, LimitedCounter

PROBE_AGAIN_S = 60.0
"""Seconds after which a throttle lets another probe start, if the caller has said nothing about the last one."""

BURST_S = 0.1
"""Seconds of a limited rate whose starts may pile up beside a first one: a dispatcher that wakes late loses none."""


class Throttle:
    """What one topic may start on this host within its quota. Times are seconds since the epoch.

    States: *closed* until `until` (nothing starts); then *probing* (one message starts, and after it nothing until the
    caller says more, or `PROBE_AGAIN_S` have passed); *limited* to `rate` starts a second. A topic without a limit has
    no throttle.

    Attributes:
        rate: most starts a second; infinity while closed or probing.
        until: time until which nothing starts; 0 while limited.
        reason: why, in words for an operator.
        since: time since which the throttle is in this state.
    """

    __slots__ = ("_at", "_probed_at", "_tokens", "rate", "reason", "since", "until")

    def __init__(self) -> None:
        self.rate = float("inf")
        self.until = self.since = 0.0
        self.reason = ""
        self._tokens = self._at = 0.0
        self._probed_at: float | None = None

    @property
    def is_limited(self) -> bool:
        return self.rate != float("inf")

    def close(self, until: float, reason: str, now: float) -> None:
        """Start nothing until `until`, then one message as a probe."""
        self.rate, self.until, self.reason, self.since = float("inf"), until, reason, now
        self._probed_at = None

    def limit(self, rate: float, reason: str, now: float) -> None:
        """Start at most `rate` messages a second, above 0."""
        if not self.is_limited:
            self._tokens, self._at, self.since = min(1.0, rate), now, now
        self.rate, self.until, self.reason = rate, 0.0, reason

    def room(self, now: float) -> int:
        """Return how many messages may start now."""
        if not self.is_limited:
            return int(self._may_probe_at() <= now)
        if now > self._at:
            self._tokens = min(self._most, self._tokens + (now - self._at) * self.rate)
            self._at = now
        return int(self._tokens)

    def take(self, n: int, now: float) -> None:
        """Note that `n` of the messages that `room` allowed start; a negative number takes starts back."""
        if self.is_limited:
            self._tokens = min(self._most, self._tokens - n)  # the throttle may be younger than the starts taken back
        elif n:
            self._probed_at = now if n > 0 else None

    def next_at(self, now: float) -> float:
        """Return when `room` allows a start; call this while it allows none."""
        if self.is_limited:
            return now + max(0.0, 1.0 - self._tokens) / self.rate
        return self._may_probe_at()

    @property
    def _most(self) -> float:
        return 1.0 + self.rate * BURST_S

    def _may_probe_at(self) -> float:
        return self.until if self._probed_at is None else max(self.until, self._probed_at + PROBE_AGAIN_S)


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

    def release(self, n: int, now: float) -> None:
        self.counter.release(n, now)
        self._throttle.take(-n, now)

    def next_at(self, now: float) -> float:
        if self._throttle.room(now):
            return self.counter.next_at(now)
        held = self._throttle.next_at(now)
        return held if self.counter.available(now) else max(held, self.counter.next_at(now))
