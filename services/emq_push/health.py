"""The health of endpoints: how much each one takes now, by its answers.

An endpoint that asks for less (429, 503, `Retry-After`), that answers much more slowly than usual, or that fails
repeatedly gets less than its topic's quota for a while (`emq.host.throttles`). The other messages wait in their order
and use no attempt.

- **Asked for less.** The rate is halved, and rises again by a twentieth of the quota in each second with a success:
  additive increase and multiplicative decrease, as TCP does (Chiu and Jain, 1989). After `Retry-After` nothing starts
  until that time.
- **Slow answers.** Answers that take over a second on average, and four times as long as the endpoint's best, halve the
  rate, too, but not below one delivery at a time: then the rate is not their cause.
- **Out of order** (`emq.quota.breaker`; twenty failures in a row). The topic is closed; then one message probes the
  endpoint. If it succeeds, the rate begins at a tenth of the quota. A few bad messages (400, or 500) do not close an
  endpoint while others succeed.

A message that began before the last change changes nothing. When the topic gets another endpoint, its throttle is
forgotten (`emq.host.topic_updates`).
"""

from __future__ import annotations

import random
from collections.abc import Callable

from emq.host.throttles import Throttles
from emq.quota.breaker import Breaker
from emq.runtime.clock import Clock

LESS = 0.5
"""Factor of the rate when an endpoint asks for less, or answers slowly."""

MORE = 0.05
"""Part of the quota by which the rate rises in a second with a success."""

LEAST = 0.01
"""Part of the quota below which no rate falls."""

AFTER_PROBE = 0.1
"""Part of the quota at which an endpoint begins when it answers again."""

SLOW = 4
LEAST_SLOW_S = 1.0
"""Answers are slow if they take this many times as long as the endpoint's best ones, and at least this many seconds."""

WEIGHT = 0.25
"""Weight of the newest answer in the average time that answers take."""

FORGET_BEST = 1 / 256
"""Part by which the best time moves towards each longer one, so that an endpoint that moved is not slow for ever."""

IN_A_ROW = 20
"""Failures in a row after which it is out of order in any case."""

FEW = 1_000
"""Number of known endpoints from which on the host looks for those whose topics have left."""

_ASK_FOR_LESS = (429, 503)
_IN_ORDER = (410, 429)
"""Failures that are no sign of a broken endpoint: 410 disables the endpoint at once, 429 asks for a lower rate."""


class Health:
    """The health of one endpoint, as far as this host knows it. Times are seconds since the epoch.

    Attributes:
        best_s, usual_s: seconds that the endpoint's best answers take, and the latest ones on average.
    """

    __slots__ = (
        "_breaker",
        "_call_s",
        "_lowered_at",
        "_raised_at",
        "_second",
        "_sent",
        "_sent_before",
        "best_s",
        "topic",
        "usual_s",
    )

    def __init__(self, topic: str, random_: random.Random) -> None:
        self.topic = topic
        self.best_s = float("inf")
        self.usual_s = 0.0
        self._breaker = Breaker(IN_A_ROW, random_)
        self._call_s = 0.0
        self._lowered_at = self._raised_at = 0.0
        self._second = self._sent = self._sent_before = 0

    def succeeded(self, began: float, now: float, throttles: Throttles) -> None:
        """A delivery that began at `began` was answered with 2xx."""
        self._breaker.succeeded()
        took_s = now - began
        self.usual_s += (took_s - self.usual_s) * WEIGHT
        is_slow = self.usual_s > LEAST_SLOW_S and self.usual_s > SLOW * self.best_s
        if took_s < self.best_s:
            self.best_s = took_s
        else:
            self.best_s += (took_s - self.best_s) * FORGET_BEST
        throttle = throttles.of(self.topic)
        if throttle is not None and not throttle.is_limited:
            if began >= throttle.until:  # it was the probe
                self._breaker.answers_again()
                self._raised_at = now
                rate = throttles.quota(self.topic) * AFTER_PROBE
                throttles.limit(self.topic, rate, f"it answers again; before: {throttle.reason}")
        elif is_slow:
            reason = f"answers take {self.usual_s:.1f} s, the best took {self.best_s:.1f} s"
            self._lower(began, now, throttles, reason, least=1 / self.usual_s)
        elif throttle is not None and now >= self._raised_at + 1.0 and began >= self._lowered_at:
            self._raised_at, quota = now, throttles.quota(self.topic)
            rate = throttle.rate + quota * MORE
            if rate < quota:
                throttles.limit(self.topic, rate, throttle.reason)
            else:
                throttles.open(self.topic)

    def asked_for_less(
        self, began: float, now: float, throttles: Throttles, reason: str, after_s: float | None = None
    ) -> None:
        """The endpoint answered that it gets too much; `after_s`: its `Retry-After`, in seconds."""
        self._lower(began, now, throttles, reason)
        if after_s is not None:
            throttle = throttles.of(self.topic)
            if throttle is None or throttle.until < now + after_s:
                throttles.close(self.topic, after_s, f"{reason}; it asked for a pause of {after_s:g} s")

    def failed(self, began: float, now: float, throttles: Throttles, reason: str) -> None:
        """A delivery failed: no answer in time, or one that says that the endpoint is out of order."""
        self._breaker.failed()
        throttle, rate = throttles.of(self.topic), throttles.quota(self.topic)
        if throttle is not None:
            rate = min(rate, throttle.rate)
        if rate > 0:
            self._call_s = 1 / rate
        if throttle is None:  # it answered again; or the topic has left this host, or has another endpoint now
            self._breaker.begin_again()
        is_probe = throttle is not None and not throttle.is_limited and began >= throttle.until
        if is_probe or (self._breaker.is_out and (throttle is None or throttle.is_limited)):
            throttles.close(self.topic, self._breaker.rest_s(), f"out of order: {reason}")

    def _lower(self, began: float, now: float, throttles: Throttles, reason: str, least: float = 0.0) -> None:
        """Lower the rate, once for all messages that were under way together, and at most once a second.

        Args:
            least: starts a second below which the rate does not fall. If an endpoint is slow with one message at a
                time, the rate is not the cause.
        """
        if began < self._lowered_at or now < self._lowered_at + 1.0:
            return
        throttle, quota = throttles.of(self.topic), throttles.quota(self.topic)
        if quota <= 0:
            return
        if throttle is None:
            # A few messages do not show which rate the endpoint takes.
            rate = min(quota, max(self._sent, self._sent_before, quota * AFTER_PROBE / LESS))
        elif throttle.is_limited:
            rate = throttle.rate
        elif began >= throttle.until:  # it was the probe, and the endpoint is in order
            self._breaker.answers_again()
            rate = quota * AFTER_PROBE
        else:
            return
        lower = min(rate, max(quota * LEAST, least, rate * LESS))
        if throttle is None and lower == rate:
            return
        self._lowered_at = self._raised_at = now
        throttles.limit(self.topic, lower, reason)

    def count(self, now: float) -> None:
        """Count a delivery of this second, so that the rate before the first throttle is known; let others fade."""
        self._breaker.fade(now, self._call_s)
        second = int(now)
        if second != self._second:
            self._sent_before = self._sent if second == self._second + 1 else 0
            self._second, self._sent = second, 0
        self._sent += 1


class Healths:
    """The health of all endpoints of this host; tells the host's throttles.

    Args:
        throttles: returns the host's throttles; None while there is no host, and then nothing is throttled.
    """

    def __init__(
        self, throttles: Callable[[], Throttles | None], clock: Clock, random_: random.Random | None = None
    ) -> None:
        self._throttles = throttles
        self._clock = clock
        self._random = random_ or random.Random()
        self._known: dict[str, Health] = {}
        self._most = FEW

    def __len__(self) -> int:
        """Return the number of known endpoints."""
        return len(self._known)

    def answered(self, topic: str, began: float, status: int, reason: str, after_s: float | None) -> None:
        """Note an answer; `reason` and `after_s` as the attempt's, for answers other than 2xx."""
        throttles = self._throttles()
        if throttles is None:
            return
        now, health = self._clock.now(), self._of(topic, throttles)
        health.count(now)
        if 200 <= status < 300:
            health.succeeded(began, now, throttles)
            return
        if status not in _IN_ORDER:
            health.failed(began, now, throttles, reason)
        if status in _ASK_FOR_LESS:  # if the failure has just closed the topic, only a longer pause counts
            health.asked_for_less(began, now, throttles, reason, after_s)

    def silent(self, topic: str, began: float, reason: str) -> None:
        """Note a delivery without an answer."""
        throttles = self._throttles()
        if throttles is not None:
            now, health = self._clock.now(), self._of(topic, throttles)
            health.count(now)
            health.failed(began, now, throttles, reason)

    def _of(self, topic: str, throttles: Throttles) -> Health:
        health = self._known.get(topic)
        if health is None:
            if len(self._known) >= self._most:  # forget those that are not here; look again at twice as many
                self._known = {name: known for name, known in self._known.items() if throttles.quota(name) > 0}
                self._most = max(FEW, 2 * len(self._known))
            health = self._known[topic] = Health(topic, self._random)
        return health
