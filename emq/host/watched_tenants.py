"""The loop that measures the topics that somebody looks at, each second, for as long as they look.

The starts of an aligned second are the difference of the counters' sums at the ends of two seconds. The loop takes the
sums `BEFORE_END_S` before a second ends. If the event loop is late and seconds pass without a look, each of them gets
an equal part, so a figure may then be above the quota although no second was.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping

from emq.clock import Clock
from emq.groups.owned import OwnedTopic
from emq.host.statistics import WatchedTenant

KEPT_S = 60
"""Seconds that are kept."""

BEFORE_END_S = 0.04
"""Seconds before the end of a second at which the loop looks."""

FIND_EVERY = 10
"""Looks after which the loop searches the host's topics again for those of a name."""

ENDPOINT = ".ep_"
"""Between a tenant's name and the rest of its endpoint's id, in the name of an endpoint's topic."""


class WatchedTenants:
    """Counts the starts of some topics each second; costs nothing while nobody looks.

    Attributes:
        names: topics and tenants that somebody looks at now.
    """

    def __init__(self, owned: Mapping[str, OwnedTopic], clock: Clock) -> None:
        """Args:
        owned: topics with a group on this host, by name.
        """
        self._owned = owned
        self._clock = clock
        self._asked = asyncio.Event()
        self._second = self._looks = 0
        self._topics: dict[str, list[str]] = {}
        self._sums: dict[str, int] = {}
        self._starts: dict[str, deque[int]] = {}
        self.names: frozenset[str] = frozenset()

    def watch(self, names: frozenset[str]) -> None:
        """Measure these from now on, and no others."""
        if names == self.names:
            return
        self.names, self._looks = names, 0
        self._sums = {name: n for name, n in self._sums.items() if name in names}
        self._starts = {name: kept for name, kept in self._starts.items() if name in names}
        self._asked.set() if names else self._asked.clear()

    def latest(self) -> tuple[WatchedTenant, ...]:
        """Return the figures of the last seconds, as far as any topic of a name is here."""
        return tuple(WatchedTenant(name, self._second, tuple(kept)) for name, kept in self._starts.items() if kept)

    async def sample(self) -> None:
        """Look at the end of each second while there are names. Ends by cancellation."""
        while True:
            await self._asked.wait()
            now = self._clock.now()
            end = int(now) + 1 - BEFORE_END_S
            await asyncio.sleep(end - now if end > now else end + 1 - now)
            self.look()

    def look(self) -> None:
        """Note the starts since the last look."""
        second = int(self._clock.now())
        passed = second - self._second if self._sums else 1
        for name, total in self._totals().items():
            if name in self._sums and passed >= 0:  # else the clock was set back
                self._note(name, max(0, total - self._sums[name]), passed)
            self._sums[name] = total
        self._second = second

    def _note(self, name: str, started: int, passed: int) -> None:
        """Share starts among the seconds that have passed since the last look; 0 if that was late, in this second."""
        kept = self._starts.setdefault(name, deque(maxlen=KEPT_S))
        if not passed and kept:
            kept[-1] += started
            return
        each, rest = divmod(started, max(1, passed))
        kept.extend([each] * min(passed - 1, KEPT_S))
        kept.append(each + rest)

    def _totals(self) -> dict[str, int]:
        """Return the starts so far of each name that has a topic here."""
        if self._looks % FIND_EVERY == 0:
            self._find()
        self._looks += 1
        found = {}
        for name, topics in self._topics.items():
            groups = [group for topic in topics if topic in self._owned for group in self._owned[topic].groups.values()]
            found[name] = sum(group.counter.reserved - group.counter.rolled_back for group in groups)
        return found

    def _find(self) -> None:
        """Find the topics of each name."""
        self._topics = {}
        for topic in self._owned:
            for name in {topic, tenant_of(topic)} & self.names:
                self._topics.setdefault(name, []).append(topic)


def tenant_of(topic: str) -> str:
    """Return the tenant that an endpoint's topic belongs to; another topic is its own tenant."""
    tenant, between, _ = topic.rpartition(ENDPOINT)
    return tenant if between else topic
