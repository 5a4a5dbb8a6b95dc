"""How many of a host's shared places a topic may hold: messages in flight, threads, bytes, connections.

Places are shared as a switch shares its buffer among ports (dynamic threshold; Choudhury and Hahne, 1998): a topic may
hold `ALPHA` times what is free. So one busy topic may hold four fifths, 300 get about a 300th each, and some places
always stay free.

A switch's free places are few when thousands of ports are full. Here it counts how long a topic holds a place, too:
the longer, the earlier the host is full for this topic (`ceiling`). Topics that settle nothing share half of the
places at most; topics that take 5 s get 72 %, those that take 50 ms 99 %. A topic that nobody knows yet counts as one
that takes a second. So however many topics hang, quick ones find places that only quick ones may take.

Nothing here costs anything for a message whose handler never waits.
"""

from __future__ import annotations

import heapq
import itertools
import math
from typing import Generic, TypeVar

ALPHA = 4
"""A topic may hold so many times what is free of the places below its ceiling."""

HALVING_S = 4.0
"""A topic that holds its places for so long is left half of the places that a hanging one is not left."""

UNKNOWN_S = 1.0
"""How long a topic counts as holding a place before it has settled anything."""

FORGET_S = 5.0
"""While a topic has nothing in flight, half of its slowness is forgotten in this time."""

LEAST = 4
"""Places that every topic may hold, as far as there are any, however quick its messages are."""

NEED = 4
"""Where places are short, a topic may hold this many times those that its rate and its pace need on average. So quick
topics that begin to hang at one moment, in which each may start a second's quota, do not take all places."""

FEW = 2
"""A topic may hold so many places for long without counting as slow, as long as others of its messages end soon."""

WEIGHT = 0.25
"""Of the newest message in the average of how long they took."""

T = TypeVar("T")


class Pace:
    """How long the messages of one topic hold their places. Times are in whole microseconds, which add up exactly.

    Attributes:
        took_s: how long those took that have ended; average, the newest counting most.
        heard_us: when one ended last, or when the first one began after none was running.
        running: how many hold a place.
        began_us: the sum of the times at which these began.
    """

    __slots__ = ("began_us", "heard_us", "running", "took_s")

    def __init__(self) -> None:
        self.took_s = UNKNOWN_S
        self.heard_us = 0
        self.running = 0
        self.began_us = 0

    def began(self, at_us: int, n: int = 1) -> None:
        """`n` messages have taken places."""
        if not self.running:
            self.heard_us = at_us
        self.running += n
        self.began_us += n * at_us

    def ended(self, began_us: int, at_us: int, n: int = 1) -> None:
        """`n` messages that began together have let go of their places."""
        self.running -= n
        self.began_us -= n * began_us
        self.heard_us = at_us
        self.took_s += ((at_us - began_us) / 1e6 - self.took_s) * WEIGHT

    def hold_s(self, now_us: int) -> float:
        """For how long a place is held, as far as is known.

        By those that ended lately; by how long none has ended; and, if more than `FEW` hold places, by their mean age,
        since those that hang are among them and not among those that ended.
        """
        if self.running > FEW:
            return max(self.took_s, (now_us - self.heard_us) / 1e6, (now_us - self.began_us / self.running) / 1e6)
        if self.running:
            return max(self.took_s, (now_us - self.heard_us) / 1e6)
        if self.took_s <= UNKNOWN_S:
            return self.took_s
        return max(UNKNOWN_S, self.took_s * math.exp2((self.heard_us - now_us) / 1e6 / FORGET_S))


def ceiling(capacity: int, hold_s: float) -> int:
    """The host is full, for a topic that holds its places for `hold_s` seconds, once so many places are taken."""
    return math.ceil(capacity * (0.5 + 0.5 / (1.0 + hold_s / HALVING_S)))


def room(full_at: int, used: int, held: int) -> int:
    """How many more places a topic may take; not above 0 for none.

    Args:
        full_at: its `ceiling`.
        used: places taken by all topics.
        held: of these, its own.
    """
    free = full_at - used
    return min(free, ALPHA * free - held)


def need(rate_per_s: float, took_s: float) -> int:
    """How many places a topic may hold that starts so many messages a second, which take so long on average."""
    return max(LEAST, math.ceil(NEED * rate_per_s * took_s))


def used_at_most(full_at: int, held: int) -> int:
    """The `used` up to which `room` leaves one place."""
    return full_at - max(1, math.ceil((held + 1) / ALPHA))


class Crowd(Generic[T]):
    """Those that wait for places to become free; the one that needs the fewest free ones comes first.

    Attributes:
        wakes_at: once at most so many places are used, `first` may go; -1 while nobody waits.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, T]] = []
        self._waiting: dict[T, int] = {}
        self._tickets = itertools.count()
        self.wakes_at = -1

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, who: T, used_at_most: int) -> None:
        """Have `who` wait until at most so many places are used, or until more are, if it was told so before."""
        if used_at_most > self._waiting.get(who, -2):
            self._waiting[who] = used_at_most
            heapq.heappush(self._heap, (-used_at_most, next(self._tickets), who))
            self._settle_top()

    def first(self) -> T:
        """Take out the one that needs the fewest free places."""
        who = self._heap[0][2]
        self._take(who)
        return who

    def longest(self) -> T:
        """Take out the one that has waited longest."""
        who = next(iter(self._waiting))
        self._take(who)
        return who

    def _take(self, who: T) -> None:
        del self._waiting[who]
        self._settle_top()

    def _settle_top(self) -> None:
        """Drop entries that were taken out or replaced: those on top at once, the others when they are many."""
        heap, waiting = self._heap, self._waiting
        if len(heap) > 2 * len(waiting) + 64:
            heap[:] = [entry for entry in heap if waiting.get(entry[2]) == -entry[0]]
            heapq.heapify(heap)
        while heap and waiting.get(heap[0][2]) != -heap[0][0]:
            heapq.heappop(heap)
        self.wakes_at = -heap[0][0] if heap else -1
