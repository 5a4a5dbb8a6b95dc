"""Chooses the topics of a host that may need somebody, with the cause and the time until their backlog is gone.

A topic is in trouble if its messages cannot start (it is paused, has no handler, or its handler has closed it), if a
throttle holds it below its quota while messages wait, if its backlog exceeds `LATE_S` of its rate, or if it has dead
letters. A host reports the worst `MOST` of them, so that a reader's cost does not grow with the number of topics.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from emq.groups.owned import OwnedTopic
from emq.host.lag_parts import Part
from emq.host.statistics import TroubledTopic
from emq.runtime import extending
from emq.runtime.slicing import in_slices
from emq.topics.model import State

MOST = 50
"""Most topics that a host reports."""

LATE_S = 60.0
"""A topic with more messages than it may start in this many seconds is in trouble."""

MAX_REASON = 200
"""Characters of a throttle's reason."""

_WAITING = (Part.READY, Part.HELD_BY_RATE, Part.HELD_BY_KEY, Part.HELD_BY_ROOM, Part.PARKED)

_WORST_FIRST = ("closed", "no_handler", "full", "limited", "backlog", "paused", "dead")
"""Causes by their urgency. A pause comes last, since somebody knows of it."""


class TroubledTopics:
    """Remembers the backlogs of the last look, to tell whether they grow or shrink."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}
        self._looked_at: float | None = None

    async def found(
        self, topics: Mapping[OwnedTopic, Mapping[Part, int]], now: float
    ) -> tuple[tuple[TroubledTopic, ...], int]:
        """Return the `MOST` topics in most trouble, the worst first, and the number of all in trouble.

        Lets other tasks run now and then, as there may be tens of thousands.

        Args:
            topics: messages by part of each topic that has any.
            now: the time of this look, in seconds since the epoch.
        """
        elapsed_s = 0.0 if self._looked_at is None else now - self._looked_at
        before, waiting, worst, in_trouble = self._before, {}, _Worst(), 0
        async for owner in in_slices(topics):
            parts, name = topics[owner], owner.topic.name
            n = sum([parts.get(part, 0) for part in _WAITING])
            if n:
                waiting[name] = n
            growth_per_s = (n - before[name]) / elapsed_s if name in before and elapsed_s > 0 else None
            topic = _judged(owner, parts, n, growth_per_s)
            if topic is not None:
                in_trouble += 1
                worst.add(topic)
        self._before, self._looked_at = waiting, now
        return worst.first(), in_trouble


class _Worst:
    """Keeps the worst topics of those added, in bounded room."""

    def __init__(self) -> None:
        self._kept: list[TroubledTopic] = []

    def add(self, topic: TroubledTopic) -> None:
        self._kept.append(topic)
        if len(self._kept) >= 4 * MOST:
            self._kept = [*self.first()]

    def first(self) -> tuple[TroubledTopic, ...]:
        """Return the `MOST` worst, the worst first."""
        urgency = _WORST_FIRST.index
        return tuple(heapq.nsmallest(MOST, self._kept, key=lambda t: (urgency(t.cause), -t.waiting, -t.dead)))


def _judged(
    owner: OwnedTopic, parts: Mapping[Part, int], waiting: int, growth_per_s: float | None
) -> TroubledTopic | None:
    """Return the topic's trouble, or None."""
    cause, rate = _cause(owner, parts), _rate(owner)
    if cause == "backlog" and waiting <= rate * LATE_S:
        cause = ""
    dead = parts.get(Part.DEAD, 0)
    if not waiting or not cause:
        if not dead:
            return None
        cause = "dead"
    reason = ""
    if owner.throttle is not None and cause in ("closed", "limited"):
        reason = owner.throttle.reason[:MAX_REASON]
    elif cause == "paused" and (standstill := extending.standstill(owner.topic)) is not None:
        reason = standstill.reason[:MAX_REASON]
    return TroubledTopic(owner.topic.name, cause, reason, waiting, dead, rate, _drain_s(waiting, rate, growth_per_s))


def _cause(owner: OwnedTopic, parts: Mapping[Part, int]) -> str:
    if owner.topic.state is State.PAUSED or extending.standstill(owner.topic) is not None:
        return "paused"
    if owner.handler is None:
        return "no_handler"
    if owner.throttle is not None:
        return "limited" if owner.throttle.is_limited else "closed"
    return "full" if parts.get(Part.HELD_BY_ROOM, 0) else "backlog"


def _rate(owner: OwnedTopic) -> float:
    if owner.topic.state is State.PAUSED or owner.handler is None:
        return 0.0
    quota = sum(group.quota for group in owner.groups.values())
    if owner.throttle is None:
        return quota
    return min(quota, owner.throttle.rate) if owner.throttle.is_limited else 0.0


def _drain_s(waiting: int, rate: float, growth_per_s: float | None) -> float | None:
    """Return the seconds until no message waits: by the change since the last look, else at the topic's whole rate."""
    if not waiting:
        return 0.0
    if rate <= 0:
        return None
    if growth_per_s is None:
        return waiting / rate
    return waiting / -growth_per_s if growth_per_s < 0 else None
