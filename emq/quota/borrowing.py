"""Borrowing: a group with a backlog uses what its idle sisters on this host leave of the topic's quota."""

from __future__ import annotations

import math
from collections import deque
from typing import Protocol

from emq.quota.counter import Counter, WindowCounter
from emq.topics.shares import Course, in_force

LOOK_AGAIN_S = 0.05
"""How soon a group that could borrow nothing asks its sisters again."""


class Sister(Protocol):
    """A group of the same topic on this host."""

    counter: Counter
    buffered: int
    stopping: bool


ASKED = 32
"""Most sisters asked in one attempt; the next attempt goes on with the next ones."""


class BorrowingCounter(WindowCounter):
    """A window counter that, once its own quota is used up, draws on sisters that have nothing to start.

    What is lent is taken off the lender's own second, so the sum over the sisters stays under the sum of their
    quotas; only the share of a single group may be exceeded. A sister lends what it did not use *so far* in the
    second and keeps the rest, so that a message that reaches it is still started at once.

    Args:
        quota: see `WindowCounter`.
        sisters: the topic's groups on this host, this one among them; shared by all of them, and turned here. Those
            that stop are left in it, and taken out when they are met.
        most: starts a second with what is borrowed; None for as many as there are.
        lends_spare: it also lends what it has by the share in force and does not use because a coming one is lower.
    """

    __slots__ = ("_lends_spare", "_most", "_sisters", "_used")

    def __init__(
        self,
        quota: float | Course,
        now: float,
        sisters: deque[Sister],
        most: int | None = None,
        *,
        lends_spare: bool = False,
    ) -> None:
        super().__init__(quota, now)
        self._sisters = sisters
        self._most = most
        self._lends_spare = lends_spare
        self._used = int(now), 0  # a second, and what was granted in it

    def reserve(self, n: int, now: float) -> int:
        granted = super().reserve(n, now)
        if granted < n:
            granted += self._borrow(self._room(n) - granted, now)
        self._use(granted)
        return granted

    def available(self, now: float) -> int:
        own = super().available(now)
        wanted = self._room(max(own, ASKED))  # a few more than it has
        for place in range(min(ASKED, len(self._sisters)) if own < wanted else 0):
            sister, counter = self._sisters[place], self._sisters[place].counter
            if counter is not self and not sister.buffered and isinstance(counter, BorrowingCounter):
                own += counter.lendable(now)
                if own >= wanted:
                    break
        return min(own, wanted)

    def release(self, n: int, now: float) -> None:
        super().release(n, now)
        self._use(-n)

    def take_over(self, other: WindowCounter) -> None:
        super().take_over(other)
        used = other._used if isinstance(other, BorrowingCounter) else (other._second, other._bound - other._left)
        self._used = used

    def lend(self, n: int, now: float) -> int:
        """Grant up to `n` starts to somebody else: of what was not used so far in this second, pro rata.

        What the quota holds for the rest of the second stays, so that a message that comes now still starts at once.
        """
        lent = min(n, self.lendable(now))
        self._left -= lent
        return lent

    def lendable(self, now: float) -> int:
        """How many starts `lend` would grant now."""
        WindowCounter.reserve(self, 0, now)
        kept = math.floor(self._bound * (self._second + 1 - now))
        return max(0, self._left + self._spare() - kept)

    def _spare(self) -> int:
        """What the share in force allows in this second beyond what this group may start itself."""
        if not self._lends_spare or self._second == self._first or len(self._course) == 1:
            return 0
        return self._course[in_force(self._course, self._second)][1].allowance(self._second) - self._bound

    def next_at(self, now: float) -> float:
        own = super().next_at(now)
        return min(own, now + LOOK_AGAIN_S if self._room(1) > 0 else float(self._second + 1))

    def _room(self, n: int) -> int:
        """So many of `n` the group may start in this second, with what it borrows."""
        if self._most is None:
            return n
        if self._second == self._first:
            return 0  # a former owner may have borrowed in this second, too
        return min(n, self._most - (self._used[1] if self._used[0] == self._second else 0))

    def _use(self, n: int) -> None:
        before = self._used[1] if self._used[0] == self._second else 0
        self._used = self._second, before + n

    def _borrow(self, n: int, now: float) -> int:
        borrowed = 0
        for _ in range(min(ASKED, len(self._sisters)) if n > 0 else 0):
            sister, counter = self._sisters[0], self._sisters[0].counter
            if sister.stopping and counter is not self:
                self._sisters.popleft()
                continue
            if counter is not self and not sister.buffered and isinstance(counter, BorrowingCounter):
                borrowed += counter.lend(n - borrowed, now)
                if borrowed == n:
                    break
            self._sisters.rotate(-1)
        self.reserved += borrowed
        return borrowed
