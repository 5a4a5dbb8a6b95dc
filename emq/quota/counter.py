"""Per-group counters: the rate limit itself, since a group lives on exactly one host.

Reserve before taking, release what was not taken, as in the original. What a group may start follows from its shares
alone (`emq.topics.shares`), in integers, so that nothing drifts and the groups' sum keeps the topic's cap in every
second.
"""

from __future__ import annotations

from typing import Protocol

from emq.topics import shares
from emq.topics.shares import MICRO, Course

__all__ = ["MICRO", "Counter", "WindowCounter", "allowance", "course_of"]


def allowance(micros: int, second: int) -> int:
    """Starts that a quota of `micros` millionths a second allows in the aligned second `second` (since the epoch)."""
    return shares.Share(micros, MICRO, 0).allowance(second)


def course_of(quota: float | Course) -> Course:
    """A course; of a mere quota, that of a group which shares with nobody."""
    return [(0, shares.share_of(quota))] if isinstance(quota, int | float) else quota


class Counter(Protocol):
    """What the dispatcher asks before it starts a message. Times are seconds since the epoch, never going back."""

    reserved: int
    """Reservations granted so far."""
    rolled_back: int
    """Reservations released so far."""

    def reserve(self, n: int, now: float) -> int:
        """Grant up to `n` starts; 0 to n. A grant is good until `valid_until`."""

    def available(self, now: float) -> int:
        """How many starts `reserve` would grant now; reserves none."""

    def release(self, n: int, now: float) -> None:
        """Give back `n` starts of a grant that were not used."""

    def valid_until(self, now: float) -> float:
        """Until when starts granted now may be used."""

    def next_at(self, now: float) -> float:
        """When, after `reserve` granted 0, a further start will be allowed."""


class WindowCounter:
    """At most what the group's share allows in each aligned second of the clock.

    A new counter grants nothing in the second it is made in: a previous owner of the group may have spent that
    second's quota already.

    Args:
        quota: the group's course of shares; or starts a second, of one that shares with nobody.
    """

    __slots__ = ("_bound", "_course", "_first", "_left", "_second", "reserved", "rolled_back")

    def __init__(self, quota: float | Course, now: float) -> None:
        self._course = course_of(quota)
        self._first = self._second = int(now)
        self._bound = 0  # of this second: what may be started in it
        self._left = 0
        self.reserved = 0
        self.rolled_back = 0

    def reserve(self, n: int, now: float) -> int:
        second = int(now)
        if second > self._second:
            self._second = second
            self._bound = self._left = shares.allowance(self._course, second)
        granted = n if n < self._left else max(0, self._left)
        self._left -= granted
        self.reserved += granted
        return granted

    def available(self, now: float) -> int:
        WindowCounter.reserve(self, 0, now)
        return max(0, self._left)

    def release(self, n: int, now: float) -> None:
        self.rolled_back += n
        if int(now) <= self._second:
            self._left += n

    def valid_until(self, now: float) -> float:
        return float(self._second + 1)

    def next_at(self, now: float) -> float:
        second = max(int(now), self._second) + 1
        course = self._course
        if course[-1][0] > second:
            return float(second)  # a change is to come within a few seconds: look at each of them
        found = course[-1][1].next_second(second)
        return float("inf") if found is None else float(found)

    def set_quota(self, quota: float | Course, now: float) -> None:
        """Change the shares: what they allow less counts at once, what they allow more from the next second on."""
        self._course = course_of(quota)
        # May fall below 0, so that what is reserved now and released later does not count as room. Never rises: below 1
        # a second, the lower quota may allow a start in a second in which the higher one allows none.
        bound = min(self._bound, shares.allowance(self._course, self._second))
        self._left -= self._bound - bound
        self._bound = bound

    def take_over(self, other: WindowCounter) -> None:
        """Go on where another counter of the same group is."""
        self._first = other._first
        self._second, self._bound, self._left = other._second, other._bound, other._left
        self.reserved, self.rolled_back = other.reserved, other.rolled_back
