"""Borrowing: a group with a backlog uses the starts that its idle sisters leave unused.

Sisters are groups of the same topic on the same host.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Protocol

from emq.quota.counter import Counter, WindowCounter, own_counter
from emq.topics.shares import ShareTimeline, in_force

LOOK_AGAIN_S = 0.05
"""Seconds after which a group that could borrow nothing asks its sisters again."""


class Sister(Protocol):
    """A group of the same topic on this host."""

    counter: Counter
    buffered: int
    stopping: bool


ASKED = 32
"""Most sisters asked in one attempt; the next attempt asks the next ones."""


class BorrowingCounter(WindowCounter):
    """A window counter that borrows starts from sisters without messages once its own quota is used up.

    A lender loses the starts that it lends in this second. So the sisters together stay within the sum of their quotas;
    only a single group may exceed its share. A sister lends the starts that it did not use *so far* in the second. It
    keeps the starts for the rest of the second, so that a message that reaches it still starts at once.

    Args:
        quota: see `WindowCounter`.
        sisters: the topic's groups on this host, this one included. All counters of the topic share this deque and
            rotate it. Groups that stop stay in the deque until a counter meets and removes them.
        most: most starts a second including borrowed ones; None for no limit.
        lends_spare: if True, the counter also lends the starts that the share in force allows and that the group may
            not use because a coming share is lower.
    """

    __slots__ = ("_lends_spare", "_most", "_sisters", "_used")

    def __init__(
        self,
        quota: float | ShareTimeline,
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
        self._used = int(now), 0  # a second, and the starts granted in it

    def reserve(self, n: int, now: float) -> int:
        granted = super().reserve(n, now)
        if granted < n:
            granted += self._borrow(self._room(n) - granted, now)
        self._use(granted)
        return granted

    def available(self, now: float) -> int:
        own = super().available(now)
        wanted = self._room(max(own, ASKED))  # some more than the group's own starts
        for place in range(min(ASKED, len(self._sisters)) if own < wanted else 0):
            sister, counter = self._sisters[place], own_counter(self._sisters[place].counter)
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
        """Grant up to `n` starts to a sister, out of the starts not used so far in this second.

        The group keeps its starts for the rest of the second, in proportion to the time left, so that a message that
        comes now still starts at once.
        """
        lent = min(n, self.lendable(now))
        self._left -= lent
        return lent

    def lendable(self, now: float) -> int:
        """Return how many starts `lend` would grant now."""
        WindowCounter.reserve(self, 0, now)
        kept = math.floor(self._bound * (self._second + 1 - now))
        return max(0, self._left + self._spare() - kept)

    def _spare(self) -> int:
        """Return the starts that the share in force allows in this second and that the group itself may not use."""
        if not self._lends_spare or self._second == self._first or len(self._course) == 1:
            return 0
        return self._course[in_force(self._course, self._second)][1].allowance(self._second) - self._bound

    def next_at(self, now: float) -> float:
        own = super().next_at(now)
        return min(own, now + LOOK_AGAIN_S if self._room(1) > 0 else float(self._second + 1))

    def _room(self, n: int) -> int:
        """Return how many of `n` starts the group may still use in this second, including borrowed ones."""
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
            sister, counter = self._sisters[0], own_counter(self._sisters[0].counter)
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
