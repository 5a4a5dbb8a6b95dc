"""One counter for all groups of a topic on one host.

The topic's part on this host is the sum of the shares of the groups that the host owns (`emq.topics.shares`). Each of
these groups draws from this part, so groups with a backlog use what idle ones leave. In every second, the parts of all
hosts add up to at most the topic's starts:

- A group that comes counts from the next second on, and starts nothing before: its former owner may have used its share
  of this second. A group that no host had before counts at once.
- A group that leaves stops counting at the end of this second. Its share of this second may still be used here, since
  its next owner begins later. With smooth pacing, its share ends at once, since the next owner's begins at once.

**A second's starts begin a little into the second.** A backlog starts a second's quota at once. Right at the boundary,
a difference of a microsecond between two clocks would move these starts into the second before. An endpoint that counts
by its own clock would then see two quotas in one second.

**Turns.** The dispatcher visits groups in turn. A visit gets at most the group's even part of the second's starts. So
each group that waits when a second begins gets its even part, and the groups that ask again get the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from emq.quota.counter import WindowCounter
from emq.quota.smooth import Pace, SmoothCounter
from emq.topics import shares, tokens
from emq.topics.model import Topic

WINDOW_BEGINS_MS = 5.0
"""Milliseconds at the begin of each second in which a topic that counts by the second starts nothing."""

UNBOUNDED = 1 << 40
"""More starts than a visit may ask for."""


class GroupCounter:
    """A group's way to the counter of its topic on this host; see `emq.quota.counter.Counter`.

    Attributes:
        index: the group's.
        since_s: the second after which the group counts.
        reserved, rolled_back: the group's starts.
    """

    __slots__ = ("_second", "_topic", "_used", "index", "reserved", "rolled_back", "since_s")

    def __init__(self, topic: TopicCounter, index: int, since_s: int) -> None:
        self._topic = topic
        self.index = index
        self.since_s = since_s
        self._second = self._used = 0
        self.reserved = 0
        self.rolled_back = 0

    def reserve(self, n: int, now: float) -> int:
        topic = self._topic
        if now >= topic.changes_at:
            topic.count_groups(now)
        if topic.is_window and (now < self.since_s + 1 or now % 1.0 < topic.begins_s):
            return 0
        granted = topic.counter.reserve(n if n < topic.most else topic.most, now)
        self.reserved += granted
        second = int(now)
        if second != self._second:
            self._second, self._used = second, 0
        self._used += granted
        return granted

    def share_left(self, now: float) -> int:
        """Return what is left of the group's own share of this second; with more it uses what others leave."""
        return self._topic.share(self.index) - (self._used if int(now) == self._second else 0)

    def available(self, now: float) -> int:
        """Return how many starts are left for the topic's groups here; a visit may get fewer of them."""
        topic = self._topic
        if now >= topic.changes_at:
            topic.count_groups(now)
        if topic.is_window and (now < self.since_s + 1 or now % 1.0 < topic.begins_s):
            return 0
        return topic.counter.available(now)

    def release(self, n: int, at: float) -> None:
        self.rolled_back += n
        self._topic.counter.release(n, at)

    def valid_until(self, now: float) -> float:
        return self._topic.counter.valid_until(now)

    def next_at(self, now: float) -> float:
        topic = self._topic
        if now >= topic.changes_at:
            topic.count_groups(now)
        if topic.is_window and now % 1.0 < topic.begins_s and topic.counter.available(now):
            at = float(max(int(now), self.since_s + 1))
        else:
            at = min(topic.counter.next_at(now), topic.changes_at)
        return at + topic.begins_s if topic.is_window else at

    def leave(self, now: float) -> None:
        """Draw nothing more: the group is let go of."""
        self._topic.leave(self, now)


class TopicCounter:
    """The counter of a topic's part of this host.

    Attributes:
        begins_s: seconds into each second before which nothing starts; only if the topic counts by the second.
        counter: counts the starts of all groups here.
        is_window: True if the topic counts in aligned seconds; False for smooth pacing.
        most: most starts of one visit.
        changes_at: time from which other groups count than those that count now; infinity if none came or went.
    """

    __slots__ = ("_counted", "_groups", "_share", "_topic", "begins_s", "changes_at", "counter", "is_window", "most")

    changes_at: float
    counter: WindowCounter | SmoothCounter
    is_window: bool
    most: int
    _share: Callable[[int], int] | None

    def __init__(self, topic: Topic, begins_s: float = 0.0) -> None:
        self.begins_s = begins_s
        self._groups: dict[int, GroupCounter] = {}
        self._counted: tuple[int, ...] = ()
        self._begin(topic, 0.0)

    def join(self, index: int, now: float, *, at_once: bool = False) -> GroupCounter:
        """Return the counter of a group that has come to this host.

        Args:
            at_once: no host had the group before.
        """
        group = self._groups[index] = GroupCounter(self, index, int(now) - at_once)
        self._moved(now, group.since_s + 1.0)
        return group

    def leave(self, group: GroupCounter, now: float) -> None:
        """Let a group go, unless it has come again meanwhile."""
        if self._groups.get(group.index) is group:
            del self._groups[group.index]
            self._moved(now, 0.0)

    def follow(self, topic: Topic, now: float) -> None:
        """Follow a change of the topic. Starts granted in this second still count.

        Another pacing begins with the next second: the two counters do not know of each other's starts.
        """
        if (topic.options.pacing == "window") != self.is_window:
            for group in self._groups.values():
                group.since_s = int(now)
            self._begin(topic, now)
            return
        self._topic = topic
        if isinstance(self.counter, WindowCounter):
            self.counter.set_quota(shares.of_groups(topic.timeline, self._counted), now)
        else:
            self.counter.set_paces(self._paces(), now)
        self._take_turns()

    def count_groups(self, now: float) -> None:
        """Count by the groups that are here now, but for those that came in this second."""
        groups = self._groups.values()
        waiting = [group.since_s + 1.0 for group in groups if self.is_window and now < group.since_s + 1]
        self.changes_at = min(waiting, default=math.inf)
        counted = sorted([group.index for group in groups if not self.is_window or now >= group.since_s + 1])
        self._counted = tuple(counted)
        if isinstance(self.counter, WindowCounter):
            self.counter.set_groups(shares.of_groups(self._topic.timeline, self._counted))
        else:
            self.counter.set_paces(self._paces(), now, moved=True)
        self._take_turns()

    def used_in(self, second: int) -> int:
        """Return the starts granted in an aligned second and not given back, if it is the latest; else 0."""
        return self.counter.used_in(second) if isinstance(self.counter, WindowCounter) else 0

    def _moved(self, now: float, counts_at: float) -> None:
        """Note that a group came or went: a smooth part has another rate at once."""
        if self.is_window:
            self.changes_at = min(self.changes_at, counts_at)
        else:
            self.count_groups(now)

    def _begin(self, topic: Topic, now: float) -> None:
        self._topic = topic
        self.is_window = topic.options.pacing == "window"
        self._counted = () if self.is_window else tuple(sorted(self._groups))
        self.changes_at = 0.0
        # Both begin with the next second.
        self.counter = WindowCounter(0, now) if self.is_window else SmoothCounter(self._paces(), int(now) + 1)
        self.most = UNBOUNDED
        self._share = None

    def share(self, index: int) -> int:
        """Return a group's own share, in starts a second, rounded up."""
        if self._share is None:  # most topics of a host are idle, and nobody asks for theirs
            self._share = self._topic.division.ceilings()
        return self._share(index)

    def _paces(self) -> list[Pace]:
        burst = self._topic.options.burst
        return [Pace(d.since_s, tokens.pace(d, self._counted, burst), d.qps) for d in self._topic.timeline]

    def _take_turns(self) -> None:
        groups, division = len(self._counted), self._topic.division
        self._share = None
        if groups <= 1 or not self.is_window:
            self.most = UNBOUNDED
            return
        part = float(division.part(self._counted))
        self.most = max(1, int(part / groups))
