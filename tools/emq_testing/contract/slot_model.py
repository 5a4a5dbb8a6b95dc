"""What a slot of a sorted topic is, in dicts and lists; told again from the docstrings of `emq.storage.slot_store`."""

from __future__ import annotations

import math
from typing import NamedTuple

from emq.storage.slot_store import Entry, Fold, Keep, Recover, SlotAdd, SlotKind, SlotSettle, SlotVerdict

History = tuple[tuple[int | None, str], ...] | None
"""Failed attempts; a time is None where the store's own clock said it; None as a whole where nothing is promised."""

LUA = "local older, newer = ...\nreturn older:sub(-4) .. '<' .. newer:sub(-4)"
FOLDS = (*map(Fold, ("latest", "sum", "max", "min", "union", "count")), Fold("lua", LUA))


class Kept(NamedTuple):
    score: float
    body: bytes
    note: bytes
    merged: int
    history: History = ()
    retries: int = 17
    """The lowest number with which it was put back."""


class Prepared(NamedTuple):
    """`rest` is (end, score to wait again with) of one that rests."""

    token: int
    kept: Kept
    rest: tuple[int, float] | None = None


class Dead(NamedTuple):
    """`dead_ms` is None where the store's own clock said it."""

    dead_ms: int | None
    reason: str
    kept: Kept


def first_body(fold: Fold, body: bytes) -> bytes:
    return b"1" if fold.name == "count" else body


def folded(fold: Fold, older: bytes, newer: bytes) -> bytes:
    """For bodies that are whole numbers or, with "union" and "lua", made from such."""
    match fold.name:
        case "sum" | "count":
            return b"%d" % (int(older) + int(newer))
        case "max":
            return max(older, newer, key=int)
        case "min":
            return min(older, newer, key=int)
        case "union":
            seen = older.split(b"\n")
            return b"\n".join(seen + [line for line in newer.split(b"\n") if line not in seen])
        case "lua":
            return older[-4:] + b"<" + newer[-4:]
    return newer


class SlotModel:
    """One slot; all calls come from its owner or from administration.

    Attributes:
        armed: the place (see `place`) before which something must come to wake; None where it is not armed.
        must_wake: something that may be claimed has come before that.
        may_wake: something has, that may not be claimed or was moved again within the call.
        sure: the store knows that its owners claimed all that is in prepare; for ever, unless it `doubts` after a
            verdict that found nothing: another program may have taken that and claimed something else.
    """

    def __init__(self, kind: SlotKind, apart: bool, fold: Fold, doubts: bool = False) -> None:
        self.doubts = doubts
        self.sure = True
        self.kind = kind
        self.apart = apart
        self.fold = fold
        self.epoch = 1
        self.waiting: dict[bytes, Kept] = {}
        self.prepared: dict[bytes, Prepared] = {}
        self.dead: dict[bytes, Dead] = {}
        self.armed: float | None = None
        self.must_wake = self.may_wake = False

    def place(self, score: float) -> float:
        """Lower comes first."""
        return -score if self.kind is SlotKind.PRIORITY else score

    def due(self, score: float, until_ms: int) -> bool:
        return self.kind is SlotKind.PRIORITY or score <= until_ms

    def claimable(self) -> list[bytes]:
        return [member for member in self.waiting if member not in self.prepared]

    def add(self, add: SlotAdd) -> bool | None:
        """None where there is no room."""
        twin = self.waiting.get(add.member)
        if twin is None and add.max_length is not None and len(self.waiting) >= add.max_length:
            return None
        new = Kept(add.score, first_body(self.fold, add.body), add.note, 1)
        if not self.apart:
            new = Kept(add.score, add.member, b"", 1)
        if twin is None:
            self._wait(add.member, new)
            return True
        keep = {Keep.FIRST: twin.score, Keep.LAST: add.score}
        keep |= {Keep.LOWEST: min(keep.values()), Keep.HIGHEST: max(keep.values())}
        self._wait(add.member, self._merged(twin, new)._replace(score=keep[add.keep]))
        return False

    def arm(self) -> None:
        self.armed = min((self.place(self.waiting[member].score) for member in self.claimable()), default=math.inf)
        self.must_wake = self.may_wake = False

    def claim(self, member: bytes, now_ms: int) -> Entry:
        """Let this member be claimed."""
        score, body, note, merged, *_ = kept = self.waiting.pop(member)
        left = max(0, min(16, kept.retries - 1, int(score) - 1 if score <= 16 else 16))
        token = now_ms // 1000 * 1000 + left
        self.prepared[member] = Prepared(token, kept)
        return Entry(member, score, token, body, note, merged, max(0, 1 - kept.retries))

    @property
    def rest_ms(self) -> int | None:
        """When the first rest is over."""
        return min((p.rest[0] for p in self.prepared.values() if p.rest), default=None)

    def settle(self, settle: SlotSettle) -> bool | None:
        """None where the epoch is stale."""
        member, verdict = settle.member, settle.verdict
        if verdict is SlotVerdict.RECALL:
            return self.waiting.pop(member, None) is not None
        if verdict is SlotVerdict.PURGE:
            return self.dead.pop(member, None) is not None
        if verdict is SlotVerdict.REPLAY:
            if member not in self.dead:
                return False
            kept = self.dead.pop(member).kept
            self._wait_again(member, kept._replace(score=settle.score, history=None, retries=17))
            if twin := self.prepared.get(member):  # a store may keep one history for both
                self.prepared[member] = twin._replace(kept=twin.kept._replace(history=None))
            return True
        if settle.epoch is not None and settle.epoch < self.epoch:
            return None
        found = self.prepared.get(member)
        if found is None or found.token != settle.token or found.rest:
            self.sure = not self.doubts
            return False
        if verdict is SlotVerdict.REST:
            kept = _used(_failed(found.kept, None, settle.reason), settle.token % 1000)
            stamp = (settle.rest_ms // 1000 + 1) * 1000 + settle.token % 1000
            self.prepared[member] = Prepared(stamp, kept, (settle.rest_ms, settle.score))
            return True
        if verdict is SlotVerdict.YIELD:
            if member not in self.waiting:
                return False
            verdict = SlotVerdict.RETRY
        kept = self._leave(member).kept
        if verdict is SlotVerdict.RETRY and settle.reason:
            kept = _used(kept, settle.token % 1000)
        if (other := self.waiting.get(member)) and verdict is SlotVerdict.RETRY and settle.keep is not None:
            scores = {Keep.FIRST: settle.score, Keep.LAST: other.score}
            scores |= {Keep.LOWEST: min(scores.values()), Keep.HIGHEST: max(scores.values())}
            self.waiting[member] = other._replace(score=scores[settle.keep])
        if verdict is SlotVerdict.RETRY:
            self._wait_again(member, _put_back(_failed(kept, None, settle.reason), settle.score))
        elif verdict is SlotVerdict.DEAD:
            self._die(member, Dead(None, settle.reason, kept))
        return True

    def recover(self, recover: Recover, now_ms: int) -> int | None:
        """None where the epoch is stale."""
        if recover.epoch < self.epoch:
            return None
        for member, found in list(self.prepared.items()):
            if found.rest and found.rest[0] <= now_ms:
                self._wait_again(member, _put_back(self._leave(member).kept, found.rest[1]))
        lost = [
            member
            for member, prepared in self.prepared.items()
            if (recover.epoch > self.epoch and self.sure and not prepared.rest)
            or (
                recover.older_than_ms is not None
                and prepared.token // 1000 * 1000 < recover.older_than_ms
                and (recover.epoch > self.epoch or member not in recover.held)
            )
        ]
        self.epoch = recover.epoch
        for member in lost:
            token, kept, _ = self._leave(member)
            if token % 1000 == 0:
                self._die(member, Dead(now_ms, recover.reason, kept))
                continue
            self._wait_again(member, _put_back(_failed(kept, now_ms, recover.reason), token % 1000))
        return len(lost)

    def note_wakes(self) -> None:
        """To be called after each call of the store that may have let something wait or settled something."""
        first = min((self.place(self.waiting[member].score) for member in self.claimable()), default=math.inf)
        if self.armed is not None and first < self.armed:
            self.must_wake, self.armed = True, None

    def _leave(self, member: bytes) -> Prepared:
        left = self.prepared.pop(member)
        if member in self.waiting:
            self._wait(member, self.waiting[member])
        return left

    def _wait(self, member: bytes, kept: Kept) -> None:
        self.waiting[member] = kept
        self.may_wake |= self.armed is not None and self.place(kept.score) < self.armed

    def _wait_again(self, member: bytes, kept: Kept) -> None:
        twin = self.waiting.get(member)
        self._wait(member, kept if twin is None else self._merged(kept, twin))

    def _die(self, member: bytes, dead: Dead) -> None:
        twin = self.dead.get(member)
        if twin is not None:
            older = _failed(twin.kept, twin.dead_ms, twin.reason).history
            newer = dead.kept.history
            known = older is not None and newer is not None and len(older) + len(newer) <= 16
            history = (older or ()) + (newer or ()) if known else None
            dead = dead._replace(kept=self._merged(twin.kept, dead.kept)._replace(history=history))
        self.dead[member] = dead

    def _merged(self, older: Kept, newer: Kept) -> Kept:
        known = older.history is not None and newer.history is not None and not (older.history and newer.history)
        history = (older.history or ()) + (newer.history or ()) if known else None
        retries = min(older.retries, newer.retries)
        if not self.apart:
            return newer._replace(history=history, retries=retries)
        body = folded(self.fold, older.body, newer.body)
        return Kept(newer.score, body, newer.note, older.merged + newer.merged, history, retries)


def _used(kept: Kept, left: int) -> Kept:
    """An attempt with so many retries left failed."""
    return kept._replace(retries=min(left, kept.retries - 1))


def _put_back(kept: Kept, score: float) -> Kept:
    return kept._replace(score=score, retries=min(kept.retries, max(0, int(score))) if score <= 16 else kept.retries)


def _failed(kept: Kept, at_ms: int | None, reason: str) -> Kept:
    if not reason or kept.history is None:
        return kept
    # Which ones are dropped beyond 16 has a test of its own.
    return kept._replace(history=(*kept.history, (at_ms, reason)) if len(kept.history) < 16 else None)
