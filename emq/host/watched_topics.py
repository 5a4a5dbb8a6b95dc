"""The loop that measures, each second, the topics that somebody looks at.

The loop looks once in each second. It takes each counter's total, less the starts of the second under way. So the
differences between looks are the starts of whole aligned seconds, as a quota counts them. If the event loop is late and
misses a second, the seconds since then get equal parts. With smooth pacing, the starts of the second under way are
unknown, so a few may count in the next second.
"""

from __future__ import annotations

import asyncio
import bisect
import sys
from collections import deque
from collections.abc import Mapping

from emq.groups.owned import OwnedTopic
from emq.host.statistics import WatchedTopic
from emq.runtime.clock import Clock

KEPT_S = 60
"""Seconds that are kept."""

LOOK_AT_S = 0.5
"""Part of each second at which the loop looks: far from both ends."""

FIND_EVERY = 10
"""Looks after which the loop searches the host's topics again for those of a name."""


class WatchedTopics:
    """Counts the starts of some topics each second; costs nothing while nobody looks.

    Attributes:
        names: those that somebody looks at now; see `emq.database.watches`.
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

    def latest(self) -> tuple[WatchedTopic, ...]:
        """Return the figures of the last seconds, for each name with a topic here."""
        return tuple(WatchedTopic(name, self._second, tuple(kept)) for name, kept in self._starts.items() if kept)

    async def sample(self) -> None:
        """Look once in each second while there are names. Ends by cancellation."""
        while True:
            await self._asked.wait()
            now = self._clock.now()
            at = int(now) + LOOK_AT_S
            await asyncio.sleep(at - now if at > now else at + 1 - now)
            self.look()

    def look(self) -> None:
        """Note the starts of the seconds that have passed since the last look."""
        second = int(self._clock.now()) - 1
        passed = second - self._second if self._sums else 1
        if passed < 1:
            if passed < 0:  # the clock was set back
                self._sums, self._starts = {}, {}
            return
        for name, total in self._totals(second + 1).items():
            if name in self._sums:
                each, rest = divmod(max(0, total - self._sums[name]), passed)
                kept = self._starts.setdefault(name, deque(maxlen=KEPT_S))
                kept.extend([each] * min(passed - 1, KEPT_S))
                kept.append(each + rest)
            self._sums[name] = total
        self._second = second

    def _totals(self, second: int) -> dict[str, int]:
        """Return the starts of each name that has a topic here, before a second."""
        if self._looks % FIND_EVERY == 0:
            self._find()
        self._looks += 1
        found = {}
        for name, topics in self._topics.items():
            found[name] = sum(_before(self._owned[topic], second) for topic in topics if topic in self._owned)
        return found

    def _find(self) -> None:
        """Find the topics of each name."""
        self._topics = {name: [name] for name in self.names & self._owned.keys()}
        if beginnings := {name: name[:-1] for name in self.names - self._topics.keys() if name.endswith("*")}:
            there = sorted(self._owned)
            for name, text in beginnings.items():
                end = bisect.bisect_left(there, text + chr(sys.maxunicode))
                if found := there[bisect.bisect_left(there, text) : end]:
                    self._topics[name] = found


def _before(owner: OwnedTopic, second: int) -> int:
    """Return the starts that the topic's groups here were granted before the second under way."""
    granted = sum(group.counter.reserved - group.counter.rolled_back for group in owner.groups.values())
    return granted - owner.counter.used_in(second)
