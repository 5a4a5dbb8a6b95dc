"""The health of a resource: the part of its limits that it gets now, by the outcomes of its tasks.

- **Too much.** A resource that asks for less (429, `Retry-After`) gets half of its present rate, and a twentieth of its
  limits more in each second with a success: additive increase and multiplicative decrease, as TCP does (Chiu and Jain,
  1989). After `Retry-After` nothing starts until that time.
- **Slow.** Tasks of a type that lately take over a second, and four times their usual time, halve it, too, but not
  below a tenth. The usual time follows slowly, so a resource that has become slower for good is not slow for ever.
- **Out of order** (`emq.quota.breaker`; ten failures in a row, or a task that says that the resource is broken). It is
  closed, for up to 1 minute if no task blamed it, since the tasks may be bad; then one task at a time probes it. If the
  probe succeeds, the resource begins at a tenth of its limits.

A task that began before the last change changes nothing.

Pure: times are seconds since the epoch, passed in.
"""

from __future__ import annotations

import math
import random

from emq.quota.breaker import MOST_CLOSED_S, Breaker
from emq_scheduling.limits.account import PROBE_FACTOR

LESS = 0.5
"""Factor when a resource asks for less, or is slow."""

MORE = 0.05
"""Part of the limits by which the factor rises in a second with a success."""

LEAST = 0.01
LEAST_SLOW = 0.1
"""Factors below which none falls: because a resource asks for less, and because it is slow."""

AFTER_PROBE = 0.1
"""The factor of a resource that has just come back into order."""

SLOW = 4.0
SLOW_S = 1.0
"""Tasks are slow if they take this many times as long as usual, and at least this many seconds."""

WEIGHT = 1 / 8
"""Weight of the newest task in the time that tasks take lately."""

USUAL_WEIGHT = 1 / 256
USUAL_TASKS = 16
"""Weight of the newest task in the usual time, once this many are known; before, the usual time is their mean."""

IN_A_ROW = 10
"""Failures in a row after which it is out of order in any case."""

MOST_CLOSED_FAILED_S = 60.0
"""Most seconds for which a resource is closed if only tasks failed."""

MOST_PAUSE_S = 86_400.0
"""Longest `Retry-After` that is honoured."""


class Took:
    """The seconds that tasks of one type take.

    Attributes:
        lately_s, usual_s: averages, of few tasks and of many.
    """

    __slots__ = ("count", "lately_s", "usual_s")

    def __init__(self) -> None:
        self.count = 0
        self.lately_s = self.usual_s = 0.0

    def add(self, took_s: float) -> None:
        """Count a task."""
        self.count += 1
        weight = max(USUAL_WEIGHT, 1 / self.count) if self.count <= USUAL_TASKS else USUAL_WEIGHT
        self.usual_s += (took_s - self.usual_s) * weight
        self.lately_s += (took_s - self.lately_s) * max(WEIGHT, 1 / self.count)

    @property
    def is_slow(self) -> bool:
        return self.count > USUAL_TASKS and self.lately_s > SLOW_S and self.lately_s > SLOW * self.usual_s


class Health:
    """The health of one resource.

    States: in order; limited (`factor` below 1), because it asked for less, is slow, or was closed; paused at its own
    request until `closed_until`, then limited; closed until `closed_until`, then probed, until a task that began
    after that time ends.

    Attributes:
        closed_until: nothing starts before; a time in the past if it is not closed.
        reason: why it gets less than its limits, in words for an operator; empty if it gets all.
    """

    __slots__ = (
        "_breaker",
        "_changed_at",
        "_counted_at",
        "_factor",
        "_gap_s",
        "_is_out",
        "_lowered_at",
        "_raised_at",
        "_took",
        "closed_until",
        "reason",
    )

    def __init__(self, random_: random.Random | None = None) -> None:
        self.closed_until = 0.0
        self.reason = ""
        self._breaker = Breaker(IN_A_ROW, random_)
        self._factor = 1.0
        self._is_out = False  # closed or being probed
        self._changed_at = self._lowered_at = self._raised_at = -math.inf
        self._counted_at = -math.inf
        self._gap_s = 0.0
        self._took: dict[str, Took] = {}

    def factor(self, now: float) -> float:
        """Return the part of its limits that the resource gets: 1 in order, `PROBE_FACTOR` while it is probed."""
        return PROBE_FACTOR if self._is_out else self._factor

    def succeeded(self, began: float, now: float, kind: str = "") -> None:
        """A task that began at `began` has succeeded.

        Args:
            kind: its type. Only tasks of one type are compared with each other.
        """
        self._count(now)
        self._breaker.succeeded()
        took = self._took.setdefault(kind, Took())
        took.add(max(0.0, now - began))
        if self._is_out:
            if began >= self.closed_until:  # it was the probe
                self._answers_again(now)
        elif took.is_slow and self._factor > LEAST_SLOW:
            of = f"tasks of type {kind!r}" if kind else "tasks"
            self._lower(began, now, f"{of} take {took.lately_s:.1f} s, usually {took.usual_s:.1f} s", LEAST_SLOW)
        elif self._factor < 1 and now >= self._raised_at + 1.0 and began >= self._lowered_at:
            self._raised_at = now
            self._factor += MORE
            if self._factor > 1 - MORE / 2:
                self._factor, self.reason = 1.0, ""

    def too_much(self, began: float, now: float, reason: str, after_s: float | None = None) -> None:
        """The resource told a task that it gets too much.

        Args:
            after_s: seconds for which the resource asked to be left alone; None for no wish.
        """
        self._count(now)
        self._breaker.in_a_row = 0
        if self._is_out and began >= self.closed_until:  # it was the probe: the resource is in order
            self._answers_again(now)
            self._lowered_at, self.reason = now, reason
        elif not self._is_out:
            self._lower(began, now, reason, LEAST)
        if after_s is not None and after_s > 0 and self.closed_until < now + min(after_s, MOST_PAUSE_S):
            self.closed_until = now + min(after_s, MOST_PAUSE_S)
            if not self._is_out:
                self.reason = f"{reason}; it asked for a pause of {after_s:g} s"

    def failed(self, began: float, now: float, reason: str) -> None:
        """A task failed, because of the resource or of itself."""
        self._count(now)
        self._breaker.failed()
        if self._breaker.is_out or self._is_out:
            self._close(began, now, reason, MOST_CLOSED_FAILED_S)

    def broken(self, began: float, now: float, reason: str) -> None:
        """A task found the resource out of order: it is closed at once."""
        self._count(now)
        self._breaker.failed()
        self._close(began, now, reason, MOST_CLOSED_S)

    def _close(self, began: float, now: float, reason: str, most_s: float) -> None:
        """Close the resource, unless the task began before the last change."""
        if began < (self.closed_until if self._is_out else self._changed_at):
            return
        self.closed_until = max(self.closed_until, now + self._breaker.rest_s(most_s))
        self._is_out = True
        self._changed_at = now
        self.reason = f"out of order: {reason}"

    def _answers_again(self, now: float) -> None:
        self._is_out = False
        self._changed_at = self._raised_at = self._lowered_at = now
        self._factor = min(self._factor, AFTER_PROBE)
        self._breaker.answers_again()
        self.reason = f"it answers again; before: {self.reason}"

    def _lower(self, began: float, now: float, reason: str, least: float) -> None:
        """Lower the factor, once for all tasks that ran together, and at most once a second."""
        if began < self._lowered_at or now < self._lowered_at + 1.0:
            return
        self._factor = min(self._factor, max(least, self._factor * LESS))
        self._lowered_at = self._raised_at = now
        self.reason = reason

    def _count(self, now: float) -> None:
        """Let former tasks fade."""
        passed_s = max(0.0, now - self._counted_at) if self._counted_at > -math.inf else 0.0
        self._counted_at = now
        self._gap_s += (passed_s - self._gap_s) * WEIGHT
        self._breaker.fade(now, self._gap_s)
