"""One slot of a sorted topic in memory: its members in their three states, and who is armed for it."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right, insort
from typing import NamedTuple

from emq.slots import LATEST, RETRIES, Fold, SlotKind
from storage_adapters.memory.wakeups import Wakeups

SPARE = 64
"""Outdated places that the queue of claimable members may hold before it is built anew."""


class Kept(NamedTuple):
    """What is kept of a member, whatever its state; `history` is as in `emq.slots.DeadMember`."""

    score: float
    body: bytes
    note: bytes = b""
    merged: int = 1
    history: tuple[tuple[int, str], ...] = ()

    def failed(self, at_ms: int, reason: str) -> Kept:
        """The same with one more failed attempt; an empty reason tells of none."""
        return self._replace(history=(*self.history, (at_ms, reason))[-RETRIES:]) if reason else self


class Prepared(NamedTuple):
    token: int
    kept: Kept

    @property
    def claimed_ms(self) -> int:
        """Whole seconds, which is all that a token tells."""
        return self.token // 1000 * 1000


class Dead(NamedTuple):
    dead_ms: int
    reason: str
    kept: Kept


class SortedSlot:
    """A member is in `waiting`, `prepared` and `dead` at most once each, and may be in all of them as its own twin.

    Claimable members (waiting, no twin in prepare) have a place in a heap. When one is claimed, blocked, taken back or
    gets another score, its place stays behind outdated; it is dropped when it comes to the top, or when outdated ones
    are the greater part. `fold` is that of the last add.
    """

    def __init__(self, address: str, kind: SlotKind) -> None:
        self.waiting: dict[bytes, Kept] = {}
        self.prepared: dict[bytes, Prepared] = {}
        self.dead: dict[bytes, Dead] = {}
        self.dead_order: list[tuple[int, bytes]] = []
        self.epoch: int | None = None
        self.fold: Fold = LATEST
        self._address = address
        self._sign = -1 if kind is SlotKind.PRIORITY else 1
        self._places: list[tuple[float, bytes]] = []
        self._alarm: tuple[float, Wakeups] | None = None

    def wait(self, member: bytes, kept: Kept) -> None:
        """Let a member wait, in place of its twin if that waits already, and wake who is armed for less."""
        self.waiting[member] = kept
        self._offer(member)

    def recall(self, member: bytes) -> bool:
        return self.waiting.pop(member, None) is not None

    def head(self) -> tuple[bytes, Kept] | None:
        """The claimable member that comes first."""
        while self._places:
            place, member = self._places[0]
            kept = self.waiting.get(member)
            if kept is not None and member not in self.prepared and place == self._place(kept):
                return member, kept
            heapq.heappop(self._places)
        return None

    def prepare(self, member: bytes, token: int) -> None:
        self.prepared[member] = Prepared(token, self.waiting.pop(member))

    def leave(self, member: bytes) -> Kept:
        """Take a member out of prepare; its twin may be claimed from now on."""
        kept = self.prepared.pop(member).kept
        if member in self.waiting:
            self._offer(member)
        return kept

    def bury(self, member: bytes, dead: Dead) -> None:
        """Let a member be dead, in place of its twin if that is dead already: the caller has merged them."""
        self.unbury(member)
        self.dead[member] = dead
        insort(self.dead_order, (dead.dead_ms, member))

    def unbury(self, member: bytes) -> Dead | None:
        dead = self.dead.pop(member, None)
        if dead is not None:
            del self.dead_order[bisect_right(self.dead_order, (dead.dead_ms, member)) - 1]
        return dead

    def arm(self, wakeups: Wakeups) -> float | None:
        """Wake `wakeups` once for what comes before the first claimable member; answers its score."""
        head = self.head()
        wakeups.forget(self._address)
        self._alarm = (math.inf if head is None else self._place(head[1]), wakeups)
        return None if head is None else head[1].score

    def in_order(self, count: int) -> list[tuple[bytes, Kept]]:
        """The first `count` waiting members in claim order, those with a twin in prepare among them."""
        return heapq.nsmallest(count, self.waiting.items(), key=lambda item: (self._place(item[1]), item[0]))

    def _place(self, kept: Kept) -> float:
        return self._sign * kept.score

    def _offer(self, member: bytes) -> None:
        if member in self.prepared:
            return
        place = self._place(self.waiting[member])
        heapq.heappush(self._places, (place, member))
        if len(self._places) > 2 * len(self.waiting) + SPARE:
            self._places = [(self._place(kept), m) for m, kept in self.waiting.items() if m not in self.prepared]
            heapq.heapify(self._places)
        if self._alarm is not None and place < self._alarm[0]:
            wakeups = self._alarm[1]
            self._alarm = None
            wakeups.wake(self._address)
