"""Short ways to ask one slot of a sorted topic, each insisting that it was not refused."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from emq.runtime import errors
from emq.storage.slot_store import (
    LATEST,
    DeadMember,
    Entry,
    Fold,
    Keep,
    Recover,
    Slot,
    SlotAdd,
    SlotClaim,
    SlotClaimed,
    SlotKind,
    SlotSettle,
    SlotState,
    SlotVerdict,
    SortedStore,
    Waiting,
)
from emq.storage.store import Store

NOW = 1_700_000_000_000
"""A whole second, since that is what claims are stamped with."""
SECOND = 1000
PLAIN_RANGE = (SlotKind.RANGE_MERGE, False)
APART_PRIORITY = (SlotKind.PRIORITY, True)
APART_TIME = (SlotKind.FIXED_TIME, True)
VARIANTS = (PLAIN_RANGE, APART_PRIORITY, APART_TIME)
VARIANT_NAMES = ("range", "priority-apart", "time-apart")
APART = pytest.mark.parametrize("variant", VARIANTS[1:], ids=VARIANT_NAMES[1:])
TIMES = pytest.mark.parametrize("variant", VARIANTS[::2], ids=VARIANT_NAMES[::2])
PRIORITIES = pytest.mark.parametrize("variant", VARIANTS[1:2], ids=VARIANT_NAMES[1:2])
STORES = pytest.mark.usefixtures("own_slots")
"""For stores with slots of their own; one of PUT and GET uses another's."""


def seconds_since(at_ms: int) -> float:
    return time.time() - at_ms / 1000


def nth(kind: SlotKind, n: float) -> float:
    """A score that comes n-th (0 to 900) in claim order; due at `NOW` where it is a time."""
    return 1000 - n if kind is SlotKind.PRIORITY else NOW - 1000 + n


class SlotUser:
    """One owner and the producers and administrators of one slot.

    Attributes:
        epoch: under which everything is asked that needs one.
    """

    def __init__(self, store: Store, slot: Slot, epoch: int = 1) -> None:
        self.store = store
        self.sorted: SortedStore = store.sorted
        self.slot = slot
        self.epoch = epoch

    def beside(self, group: int = 1) -> SlotUser:
        """The user of another slot of the same topic."""
        topic = self.slot.name.rpartition("/")[0]
        return SlotUser(self.store, self.slot._replace(name=f"{topic}/{group}"), self.epoch)

    async def add(
        self,
        member: bytes,
        score: float,
        *,
        keep: Keep = Keep.LAST,
        body: bytes = b"",
        note: bytes = b"",
        fold: Fold = LATEST,
    ) -> bool:
        """Answers whether the member was new."""
        (answer,) = await self.sorted.add([SlotAdd(self.slot, member, score, keep, body, note, fold)])
        assert isinstance(answer, bool)
        return answer

    async def fill(self, *members: bytes, first: int = 0) -> None:
        """Add new members, each with its own bytes as its body, to be claimed at once and in this order."""
        adds = [
            SlotAdd(self.slot, member, nth(self.slot.kind, first + n), Keep.LAST, member if self.slot.apart else b"")
            for n, member in enumerate(members)
        ]
        assert await self.sorted.add(adds) == [True] * len(members)

    async def claim(self, limit: int = 100, now_ms: int = NOW, until_ms: int | None = None) -> SlotClaimed:
        until_ms = now_ms if until_ms is None else until_ms
        (answer,) = await self.sorted.claim([SlotClaim(self.slot, limit, self.epoch, until_ms)], now_ms)
        assert isinstance(answer, SlotClaimed)
        return answer

    async def claims(self, *members: bytes, now_ms: int = NOW) -> list[Entry]:
        """Claim all that may run, which must be exactly these, in this order."""
        claimed = await self.claim(now_ms=now_ms)
        assert [entry.member for entry in claimed.entries] == list(members)
        return list(claimed.entries)

    async def settle(
        self,
        verdict: SlotVerdict,
        entry: Entry | bytes,
        *,
        score: float | None = None,
        reason: str = "",
        fold: Fold = LATEST,
    ) -> bool:
        """An entry for the owner's verdicts, a member for the administration's; RETRY goes to what is `left`."""
        (answer,) = await self.sorted.settle([self.verdict(verdict, entry, score=score, reason=reason, fold=fold)])
        assert isinstance(answer, bool)
        return answer

    def verdict(
        self,
        verdict: SlotVerdict,
        entry: Entry | bytes,
        *,
        score: float | None = None,
        reason: str = "",
        fold: Fold = LATEST,
        rest_ms: int = NOW + 60 * SECOND,
    ) -> SlotSettle:
        if isinstance(entry, bytes):
            return SlotSettle(self.slot, entry, verdict, score=score or 0, reason=reason, fold=fold)
        score = entry.left if score is None else score
        return SlotSettle(
            self.slot, entry.member, verdict, entry.token, self.epoch, score, reason, fold, rest_ms=rest_ms
        )

    async def ack(self, entry: Entry) -> bool:
        return await self.settle(SlotVerdict.ACK, entry)

    async def retry(self, entry: Entry, score: float | None = None, *, reason: str = "", fold: Fold = LATEST) -> bool:
        return await self.settle(SlotVerdict.RETRY, entry, score=score, reason=reason, fold=fold)

    async def rest(self, entry: Entry, rest_ms: int, score: float | None = None, *, reason: str = "") -> bool:
        asked = self.verdict(SlotVerdict.REST, entry, score=entry.score if score is None else score, reason=reason)
        (answer,) = await self.sorted.settle([asked._replace(rest_ms=rest_ms)])
        assert isinstance(answer, bool)
        return answer

    async def die(self, entry: Entry, reason: str = "hopeless") -> bool:
        return await self.settle(SlotVerdict.DEAD, entry, reason=reason)

    async def recover(
        self,
        older_than_ms: int | None = None,
        held: Sequence[bytes] = (),
        *,
        now_ms: int = NOW,
        reason: str = "lost",
        lost: bool = False,
    ) -> int:
        asked = Recover(self.slot, self.epoch, older_than_ms, held, reason, lost)
        (answer,) = await self.sorted.recover([asked], now_ms)
        assert isinstance(answer, int)
        return answer

    async def succeed(self, *, now_ms: int = NOW) -> int:
        """Become the next owner, which gives back all that the last one had claimed."""
        self.epoch += 1
        return await self.recover(now_ms=now_ms)

    async def state(self, now_ms: int = NOW) -> SlotState:
        (answer,) = await self.sorted.inspect([self.slot], now_ms)
        return answer

    async def sizes(self) -> tuple[int, int, int]:
        """Waiting, prepared, dead."""
        state = await self.state()
        return state.waiting, state.prepared, state.dead

    async def waiting(self) -> list[Waiting]:
        return await self.sorted.waiting(self.slot)

    async def scores(self) -> dict[bytes, float]:
        """Of all that wait."""
        return {each.member: each.score for each in await self.waiting()}

    async def dead(self) -> list[DeadMember]:
        return await self.sorted.dead(self.slot)

    async def buried(self, member: bytes, reason: str = "hopeless") -> DeadMember:
        """Add a member and let it be dead; nothing else may be claimable."""
        await self.fill(member)
        (entry,) = await self.claims(member)
        assert await self.die(entry, reason)
        (dead,) = [each for each in await self.dead() if each.member == member]
        return dead


def refused(answers: Sequence[object]) -> list[bool]:
    """Which of the answers are `NotOwner`."""
    return [isinstance(answer, errors.NotOwner) for answer in answers]
