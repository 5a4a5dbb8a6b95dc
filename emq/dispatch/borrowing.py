"""Borrowing: a group with a backlog uses what its idle sisters on this host leave of the topic's quota."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from emq.dispatch.counter import Counter, WindowCounter

LOOK_AGAIN_S = 0.05
"""How soon a group that could borrow nothing asks its sisters again."""


class Sister(Protocol):
    """A group of the same topic on this host."""

    counter: Counter
    buffered: int


ASKED = 32
"""Most sisters asked in one attempt; the next attempt goes on with the next ones."""


class BorrowingCounter(WindowCounter):
    """A window counter that, once its own quota is used up, draws on sisters that have nothing to start.

    What is lent is taken off the lender's own second, so the sum over the sisters stays under the sum of their
    quotas; only the share of a single group may be exceeded. A sister lends what it did not use *so far* in the
    second and keeps the rest, so that a message that reaches it is still started at once.

    Args:
        sisters: the topic's groups on this host, this one among them; shared by all of them, and turned here.
    """

    __slots__ = ("_sisters",)

    def __init__(self, quota: float, now: float, sisters: deque[Sister]) -> None:
        super().__init__(quota, now)
        self._sisters = sisters

    def reserve(self, n: int, now: float) -> int:
        granted = super().reserve(n, now)
        if granted < n:
            granted += self._borrow(n - granted, now)
        return granted

    def next_at(self, now: float) -> float:
        return min(super().next_at(now), now + LOOK_AGAIN_S)

    def _borrow(self, n: int, now: float) -> int:
        borrowed = 0
        for _ in range(min(ASKED, len(self._sisters))):
            sister, counter = self._sisters[0], self._sisters[0].counter
            if counter is not self and not sister.buffered and isinstance(counter, WindowCounter):
                borrowed += counter.lend(n - borrowed, now)
                if borrowed == n:
                    break
            self._sisters.rotate(-1)
        self.reserved += borrowed
        return borrowed
