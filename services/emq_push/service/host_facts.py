"""The hosts' present reports about topics, from the snapshots that they save each second."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from emq.host.statistics import ThrottledTopic
from emq.observe import snapshots
from emq.observe.snapshots import AgedSnapshot
from emq_push.records.endpoints import topics_of
from emq_push.service.parts import Parts
from emq_trace import host_totals
from emq_trace.host_totals import TopicTotal

FRESH_US = 1_000_000
"""Microseconds for which a process shows the same snapshots: hosts save theirs once a second."""


class HostFacts(NamedTuple):
    """Attributes:
    seen: all hosts heard of within the last hour.
    topics: the topics that live hosts named among their busiest.
    throttled: the topics that live hosts named as closed or limited.
    names_all: True if every live host has named all its topics, so that a topic without a name is at rest.
    """

    seen: list[AgedSnapshot]
    topics: dict[str, TopicTotal]
    throttled: dict[str, ThrottledTopic]
    names_all: bool

    @property
    def live(self) -> bool:
        """False if no host has saved a snapshot lately."""
        return any(s.live for s in self.seen)

    def in_flight(self, topic: str) -> int | None:
        """Return the number of the topic's messages in flight; None if not known."""
        if not self.live:
            return None
        total = self.topics.get(topic)
        return total.in_flight if total is not None else 0 if self.names_all else None

    def started_per_s(self, topic: str) -> float | None:
        """Return the deliveries of the topic started a second; None if not known."""
        if not self.live:
            return None
        total = self.topics.get(topic)
        return total.started_per_s if total is not None else 0.0 if self.names_all else None

    def starts(self, name: str) -> tuple[int, tuple[int, ...]] | None:
        """Return the starts of a watched tenant and its endpoints in the last seconds, over all hosts.

        Returns:
            The last second, since the epoch, and the starts in each second up to it, the oldest first. None if no host
            watches them.
        """
        watched = [w for s in self.seen if s.live for w in s.host.watched if w.name in topics_of(name)]
        if not watched:
            return None
        # Hosts save at different moments: show the seconds that all of them have counted.
        second = min(w.second for w in watched)
        counted = [
            w.starts[: len(w.starts) - (w.second - second)] for w in watched if len(w.starts) > w.second - second
        ]
        length = min(map(len, counted)) if len(counted) == len(watched) else 0
        return second, tuple(map(sum, zip(*(c[len(c) - length :] for c in counted), strict=True)))


class HostView:
    """Reads the snapshots, at most once in `FRESH_US`."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._reading = asyncio.Lock()
        self._at_us = 0
        self._facts = HostFacts([], {}, {}, False)

    async def now(self) -> HostFacts:
        """Return the facts, at most `FRESH_US` old. Raises `DatabaseUnavailable`."""
        async with self._reading:
            now_us = self._parts.now_us()
            if not 0 <= now_us - self._at_us < FRESH_US:
                self._facts, self._at_us = facts_of(await snapshots.load(self._parts.app)), now_us
            return self._facts


def facts_of(seen: list[AgedSnapshot]) -> HostFacts:
    """Put snapshots together."""
    live = [s.host for s in seen if s.live]
    return HostFacts(
        seen,
        {t.name: t for t in host_totals.topics(seen)},
        host_totals.throttled(seen),
        all(len(h.busiest) >= h.topics and len(h.throttled) >= h.closed + h.limited for h in live),
    )
