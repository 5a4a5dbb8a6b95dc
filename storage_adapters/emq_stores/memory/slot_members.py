"""One slot of a sorted topic in memory: its members in their three states, and its alarm.

A *twin* of a member is the same member in another state, or added again.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right, insort
from typing import NamedTuple

from emq.storage.slot_store import LATEST, RETRIES, Fold, SlotKind, resting_ms
from emq_stores.memory.wakeups import Wakeups

SPARE = 64
"""Number of outdated places that the heap of claimable members may hold before it is built again."""


class Kept(NamedTuple):
    """The data of a member in any state.

    Attributes:
        history: see `emq.storage.slot_store.DeadMember`.
        retries: the lowest number of retries with which the member was put back; None if it never was put back.
    """

    score: float
    body: bytes
    note: bytes = b""
    merged: int = 1
    history: tuple[tuple[int, str], ...] = ()
    retries: int | None = None

    def put_back(self, score: float) -> Kept:
        """Return the member waiting again with `score`. If the score is a number of retries, it may lower `retries`."""
        if score > RETRIES:
            return self._replace(score=score)
        return self._replace(score=score, retries=lower(self.retries, max(0, int(score))))

    @property
    def left(self) -> int:
        """Retries left after a claim."""
        by_score = RETRIES if self.score > RETRIES else max(0, int(self.score) - 1)
        return by_score if self.retries is None else min(by_score, max(0, self.retries - 1))

    @property
    def beyond(self) -> int:
        """The number of deliveries after a claim that exceed the retries."""
        return 0 if self.retries is None else max(0, 1 - self.retries)

    def used(self, left: int) -> Kept:
        """Return the member after an attempt that had `left` retries left; each attempt takes one, also below 0."""
        return self._replace(retries=left if self.retries is None else min(left, self.retries - 1))

    def failed(self, at_ms: int, reason: str) -> Kept:
        """Return the member with one more failed attempt; an empty reason means no failure."""
        return self._replace(history=(*self.history, (at_ms, reason))[-RETRIES:]) if reason else self


def lower(one: int | None, other: int | None) -> int | None:
    """Return the lower of two numbers; None counts as absent."""
    return min((n for n in (one, other) if n is not None), default=None)


class Prepared(NamedTuple):
    token: int
    kept: Kept

    @property
    def claimed_ms(self) -> int:
        """Time of the claim in ms; the token holds it in whole seconds."""
        return self.token // 1000 * 1000


class Dead(NamedTuple):
    dead_ms: int
    reason: str
    kept: Kept


class SortedSlot:
    """A slot. A member is in `waiting`, `prepared` and `dead` at most once each, and may be in several of them.

    Claimable members (waiting, no twin in prepare) have a place in a heap. When a member is claimed, blocked, taken
    back or gets another score, its old place stays in the heap. The slot drops an outdated place at the top of the
    heap, and all of them when they are the greater part. `fold` is the fold of the last add.
    """

    def __init__(self, address: str, kind: SlotKind) -> None:
        self.waiting: dict[bytes, Kept] = {}
        self.prepared: dict[bytes, Prepared] = {}
        self.dead: dict[bytes, Dead] = {}
        self.dead_order: list[tuple[int, bytes]] = []
        self.epoch: int | None = None
        self.fold: Fold = LATEST
        self._rests: dict[bytes, tuple[int, float]] = {}
        self._rest_times: list[tuple[int, bytes]] = []
        self._address = address
        self._sign = -1 if kind is SlotKind.PRIORITY else 1
        self._places: list[tuple[float, bytes]] = []
        self._alarm: tuple[float, Wakeups] | None = None

    def wait(self, member: bytes, kept: Kept) -> None:
        """Let a member wait, in place of a waiting twin; wake the armed instance if the member comes first."""
        self.waiting[member] = kept
        self._offer(member)

    def recall(self, member: bytes) -> bool:
        return self.waiting.pop(member, None) is not None

    def head(self) -> tuple[bytes, Kept] | None:
        """Return the first claimable member; None without one."""
        while self._places:
            place, member = self._places[0]
            kept = self.waiting.get(member)
            if kept is not None and member not in self.prepared and place == self._place(kept):
                return member, kept
            heapq.heappop(self._places)
        return None

    def prepare(self, member: bytes, token: int) -> None:
        self.prepared[member] = Prepared(token, self.waiting.pop(member))

    def rest(self, member: bytes, left: int, kept: Kept, rest_ms: int, score: float) -> None:
        """Let a prepared member rest; it waits again with `score`."""
        self.prepared[member] = Prepared(resting_ms(rest_ms) + left, kept)
        self._rests[member] = rest_ms, score
        heapq.heappush(self._rest_times, (rest_ms, member))

    def is_resting(self, member: bytes) -> bool:
        return member in self._rests

    @property
    def resting(self) -> int:
        return len(self._rests)

    def rest_ms(self) -> int | None:
        """Return the time at which the first resting member waits again; None without one."""
        while self._rest_times:
            rest_ms, member = self._rest_times[0]
            if member in self._rests and self._rests[member][0] == rest_ms:
                return rest_ms
            heapq.heappop(self._rest_times)
        return None

    def rested(self, now_ms: int) -> tuple[bytes, float] | None:
        """Return a member whose rest is over, and the score with which it waits again; None without one."""
        rest_ms = self.rest_ms()
        if rest_ms is None or rest_ms > now_ms:
            return None
        member = self._rest_times[0][1]
        return member, self._rests[member][1]

    def leave(self, member: bytes) -> Kept:
        """Remove a member from prepare; its waiting twin becomes claimable."""
        self._rests.pop(member, None)
        kept = self.prepared.pop(member).kept
        if member in self.waiting:
            self._offer(member)
        return kept

    def bury(self, member: bytes, dead: Dead) -> None:
        """Make a member dead, in place of a dead twin; the caller has merged the two."""
        self.unbury(member)
        self.dead[member] = dead
        insort(self.dead_order, (dead.dead_ms, member))

    def unbury(self, member: bytes) -> Dead | None:
        dead = self.dead.pop(member, None)
        if dead is not None:
            del self.dead_order[bisect_right(self.dead_order, (dead.dead_ms, member)) - 1]
        return dead

    def arm(self, wakeups: Wakeups) -> float | None:
        """Arm `wakeups` for members before the first claimable one; return that member's score, or None."""
        head = self.head()
        wakeups.forget(self._address)
        self._alarm = (math.inf if head is None else self._place(head[1]), wakeups)
        return None if head is None else head[1].score

    def in_order(self, count: int) -> list[tuple[bytes, Kept]]:
        """Return the first `count` waiting members in claim order, also those with a twin in prepare."""
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
