"""Decides how many of a host's shared places (messages in flight, threads, bytes, connections) a topic may hold.

Places are shared as a switch shares its buffer among ports (dynamic threshold; Choudhury and Hahne, 1998): a topic may
hold `ALPHA` times as many places as are free. So one busy topic may hold four fifths of them, 300 busy topics about a
300th each, and some places always stay free.

A switch has few free places when thousands of ports are full. Here the holding time counts, too: the longer a topic
holds its places, the earlier the host counts as full for it (`ceiling`). Topics that settle nothing share at most half
of the places; topics that take 5 s share 72 %, topics that take 50 ms 99 %. So quick topics find places, however many
topics hang.

A topic is *unknown* until more of its messages have ended than now hold places (`Shares`). All topics are unknown when
a host starts, and those that hang stay so, also those that hang for most messages only. The first message of an unknown
topic finds a place while less than 90 % are taken. Further messages of the topic find a place while less than a tenth
are taken; once no other unknown topics come, while less than half are, as for a topic that hangs. Beyond that, a known
topic holds at most as many places as its messages have ended. So a starting host keeps places for the first messages of
all topics, if the topics that hang are fewer than about 80 % of its places. If more hang, the others wait until
messages time out.

A message whose handler never waits costs nothing here.
"""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

ALPHA = 4
"""Places that a topic may hold for each free place below the topic's ceiling."""

HALVING_S = 4.0
"""Holding time, in seconds, for which a topic gets half of the places that are closed to a hanging topic."""

UNKNOWN_S = 1.0
"""Seconds for which the first message of an unknown topic counts as holding a place."""

PROBATION_S = 1.0
"""Seconds, after an unknown topic got its first place, in which unknown topics get few further places. So each topic
with a backlog gets a first place before any topic gets many, also if the host reads topics one by one."""

PROBATION = 10
PROBATION_LEAST = 2
"""These few places are one `PROBATION`-th of all, or `PROBATION_LEAST`, so that a small pool of threads is not idle."""

FORGET_S = 5.0
"""Seconds in which a topic without messages in flight loses half of its slowness."""

LEAST = 4
"""Fewest places that `need` returns."""

NEED = 4
"""While places are short, a topic may hold this many times the places that its rate and pace need on average. So if all
quick topics begin to hang at once, they do not take all places."""

FEW = 2
"""Places that a topic may hold for long and still count as quick, if its other messages end soon."""

WEIGHT = 0.25
"""Weight of the newest message in the average time that messages took."""

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class HoldingTimes:
    """How long the messages of one topic hold their places; in whole microseconds, which add up exactly.

    Attributes:
        heard: number of messages that have ended.
        took_s: average time, in seconds, of the ended messages; the newest count most.
        heard_us: when a message last ended, or began while none was running.
        running: number of messages that hold a place.
        began_us: sum of the times at which these messages began.
    """

    heard: int = 0
    took_s: float = UNKNOWN_S
    heard_us: int = 0
    running: int = 0
    began_us: int = 0

    @property
    def known(self) -> bool:
        """True if more messages have ended than now hold places, so that these are likely to end, too."""
        return self.proven > 0

    @property
    def proven(self) -> int:
        """Number of messages by which those that have ended are more than those that now hold places."""
        return self.heard - self.running

    def began(self, at_us: int, n: int = 1) -> None:
        """Note that `n` messages have taken places."""
        if not self.running:
            self.heard_us = at_us
        self.running += n
        self.began_us += n * at_us

    def ended(self, began_us: int, at_us: int, n: int = 1) -> None:
        """Note that `n` messages that began together have let go of their places."""
        self.running -= n
        self.began_us -= n * began_us
        self.heard_us = at_us
        self.took_s += ((at_us - began_us) / 1e6 - self.took_s) * WEIGHT
        self.heard += n

    def passed(self, n: int) -> None:
        """Note the end of `n` messages that took no place, because their handler did not wait."""
        if not self.running:
            self.took_s *= 1 - WEIGHT
        self.heard += n

    def hold_s(self, now_us: int) -> float:
        """Return the seconds for which the topic holds a place, as far as is known.

        The result is the longest of: the average of the messages that ended lately; the time since the last one ended;
        and, if more than `FEW` messages hold places, their mean age, since hanging messages never end.
        """
        if self.running > FEW:
            return max(self.took_s, (now_us - self.heard_us) / 1e6, (now_us - self.began_us / self.running) / 1e6)
        if self.running:
            return max(self.took_s, (now_us - self.heard_us) / 1e6)
        if self.took_s <= UNKNOWN_S:
            return self.took_s
        return max(UNKNOWN_S, self.took_s * math.exp2((self.heard_us - now_us) / 1e6 / FORGET_S))


def ceiling(capacity: int, hold_s: float) -> int:
    """Return the taken places at which the host is full for a topic that holds its places for `hold_s` seconds."""
    return math.ceil(capacity * (0.5 + 0.5 / (1.0 + hold_s / HALVING_S)))


class Room(NamedTuple):
    """Attributes:
    places: number of places that the topic may take; 0 or less for none.
    full_at: number of taken places at which the host is full for the topic.
    """

    places: int
    full_at: int


def is_short(capacity: int, used: int) -> bool:
    """Return True if a known topic's share may be smaller than the number of free places."""
    return used * 4 > capacity


def room(full_at: int, used: int, held: int) -> int:
    """Return how many more places a topic may take; 0 or less for none.

    Args:
        full_at: the topic's `ceiling`.
        used: places taken by all topics.
        held: places taken by this topic.
    """
    free = full_at - used
    return min(free, ALPHA * free - held)


def need(rate_per_s: float, took_s: float) -> int:
    """Return the places for a topic that starts `rate_per_s` messages a second, of `took_s` seconds each."""
    return max(LEAST, math.ceil(NEED * rate_per_s * took_s))


class Shares:
    """Decides how many places a topic may take, known or not."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._first_us = 0  # when an unknown topic got its first place last

    def room(self, pace: HoldingTimes, used: int, held: int, now_us: int) -> Room:
        """Return the room of a topic that holds `held` of the `used` places."""
        capacity = self._capacity
        few = min(capacity, max(PROBATION_LEAST, capacity // PROBATION))
        is_calm = held > 0 and now_us - self._first_us >= PROBATION_S * 1e6
        full_at = ceiling(capacity, math.inf) if is_calm else few
        places = room(full_at, used, held)
        if pace.known:
            full_at = ceiling(capacity, pace.hold_s(now_us))
            places = min(room(full_at, used, held), max(places, pace.proven))
        elif not held:
            if places <= 0:
                full_at = ceiling(capacity, UNKNOWN_S)
                places = min(1, room(full_at, used, held))
            if places > 0:
                self._first_us = now_us
        return Room(places, full_at)


def used_at_most(full_at: int, held: int) -> int:
    """Return the largest `used` for which `room` is at least 1."""
    return full_at - max(1, math.ceil((held + 1) / ALPHA))


class Crowd(Generic[T]):
    """Tenants or topics that wait for free places. The tenant or topic that needs the fewest free places is first.

    Attributes:
        wakes_at: most used places with which `first` may go; -1 while nobody waits.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, T]] = []
        self._waiting: dict[T, int] = {}
        self._tickets = itertools.count()
        self.wakes_at = -1

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, who: T, used_at_most: int) -> None:
        """Let `who` wait until at most `used_at_most` places are used; of several calls the larger number counts."""
        if used_at_most > self._waiting.get(who, -2):
            self._waiting[who] = used_at_most
            heapq.heappush(self._heap, (-used_at_most, next(self._tickets), who))
            self._settle_top()

    def first(self) -> T:
        """Take out and return the tenant or topic that needs the fewest free places."""
        who = self._heap[0][2]
        self._take(who)
        return who

    def longest(self) -> T:
        """Take out and return the tenant or topic that has waited longest."""
        who = next(iter(self._waiting))
        self._take(who)
        return who

    def _take(self, who: T) -> None:
        del self._waiting[who]
        self._settle_top()

    def _settle_top(self) -> None:
        """Drop outdated heap entries: those on top at once, the others when they are many."""
        heap, waiting = self._heap, self._waiting
        if len(heap) > 2 * len(waiting) + 64:
            heap[:] = [entry for entry in heap if waiting.get(entry[2]) == -entry[0]]
            heapq.heapify(heap)
        while heap and waiting.get(heap[0][2]) != -heap[0][0]:
            heapq.heappop(heap)
        self.wakes_at = -heap[0][0] if heap else -1
