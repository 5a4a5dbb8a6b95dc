"""Counters of starts. They are the rate limit itself, since exactly one host owns a group.

Reserve starts before taking messages, and release the starts that were not used. All groups of a topic on one host draw
from one counter (`emq.quota.topic_counter`). It grants the shares of these groups (`emq.topics.shares`), in integers:
nothing drifts, and in every second the starts of all hosts stay within the topic's qps.
"""

from __future__ import annotations

import abc
from typing import Protocol

from emq.topics import shares
from emq.topics.shares import MICRO, ShareTimeline

__all__ = ["MICRO", "Counter", "LimitedCounter", "WindowCounter", "allowance", "course_of", "own_counter"]


def allowance(micros: int, second: int) -> int:
    """Return the starts that `micros` millionths a second allow in the aligned second `second` since the epoch."""
    return shares.Share(micros, MICRO, 0).allowance(second)


def course_of(quota: float | ShareTimeline) -> ShareTimeline:
    """Return a course of shares. A number stands for a group that shares its quota with no other."""
    return [shares.Step(0, shares.share_of(quota), quota)] if isinstance(quota, int | float) else quota


class Counter(Protocol):
    """Grants starts to the dispatcher, in advance. Times are seconds since the epoch and never go back."""

    @property
    def reserved(self) -> int:
        """Starts granted so far."""

    @property
    def rolled_back(self) -> int:
        """Starts released so far."""

    def reserve(self, n: int, now: float) -> int:
        """Grant up to `n` starts; return their number, 0 to n. A grant is good until `valid_until`."""

    def available(self, now: float) -> int:
        """Return how many starts `reserve` would grant now, without reserving any."""

    def release(self, n: int, at: float) -> None:
        """Give back `n` starts that were granted at the time `at` and not used.

        Other groups may have begun the next second or another pace meanwhile. They may not use these starts.
        """

    def valid_until(self, now: float) -> float:
        """Return the time until which starts granted now may be used."""

    def next_at(self, now: float) -> float:
        """Return the time of the next allowed start, after `reserve` has granted 0; infinity for never."""


class LimitedCounter(abc.ABC):
    """A group's counter below a budget or throttle that may allow fewer starts.

    Attributes:
        counter: the next counter; the last one is the group's own.
    """

    __slots__ = ("counter",)

    def __init__(self, counter: Counter) -> None:
        self.counter = counter

    @property
    def reserved(self) -> int:
        return self.counter.reserved

    @property
    def rolled_back(self) -> int:
        return self.counter.rolled_back

    @abc.abstractmethod
    def reserve(self, n: int, now: float) -> int:
        """See `Counter`, as for the methods below."""

    @abc.abstractmethod
    def available(self, now: float) -> int: ...

    @abc.abstractmethod
    def release(self, n: int, at: float) -> None: ...

    @abc.abstractmethod
    def next_at(self, now: float) -> float: ...

    def valid_until(self, now: float) -> float:
        return self.counter.valid_until(now)


def own_counter(counter: Counter) -> Counter:
    """Return the group's own counter, without budgets and throttles."""
    while isinstance(counter, LimitedCounter):
        counter = counter.counter
    return counter


class WindowCounter:
    """Grants in each aligned second at most the starts of its share.

    A new counter grants nothing in the second in which it is made: a previous owner may have used that second's quota
    already.

    Args:
        quota: the course of shares; or starts a second.
    """

    __slots__ = ("_bound", "_course", "_left", "_second", "reserved", "rolled_back")

    def __init__(self, quota: float | ShareTimeline, now: float) -> None:
        self._course = course_of(quota)
        self._second = int(now)
        self._bound = 0  # starts allowed in this second
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
        self.reserve(0, now)
        return max(0, self._left)

    def release(self, n: int, at: float) -> None:
        self.rolled_back += n
        if int(at) == self._second:
            self._left += n

    def used_in(self, second: int) -> int:
        """Return the starts granted and not given back in an aligned second, if it is the latest one; else 0."""
        return self._bound - self._left if second == self._second else 0

    def valid_until(self, now: float) -> float:
        return float(self._second + 1)

    def next_at(self, now: float) -> float:
        second = max(int(now), self._second) + 1
        course = self._course
        if course[-1].since_s > second:
            return float(second)  # a change comes within a few seconds: look at each second
        found = course[-1].part.next_second(second)
        return float("inf") if found is None else float(found)

    def set_quota(self, quota: float | ShareTimeline, now: float) -> None:
        """Change the shares. A lower quota counts at once, a higher one from the next second on."""
        self._course = course_of(quota)
        # `_left` may fall below 0, so that starts reserved now and released later do not count as room. The bound never
        # rises: a lower quota below 1 a second may allow a start in a second in which a higher one does not.
        bound = min(self._bound, shares.allowance(self._course, self._second))
        self._left -= self._bound - bound
        self._bound = bound

    def set_groups(self, course: ShareTimeline) -> None:
        """Count by the shares of other groups from the next second on. Groups that left still count in this one."""
        self._course = course
