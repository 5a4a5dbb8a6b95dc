"""The protocol of sorted topics: slots whose messages merge and come by priority or time (RMQ's semantics).

A *slot* is a group of a sorted topic. Its messages are *members* of an ordered set. A member waits in the set at most
once: if it is added again, the store merges the two. The waiting one of two equal members is called the other's *twin*.
A host first claims a member and then settles it, so every member is in one of three states:

    waiting (store)  --claim-->  prepared  --ACK-->   gone
                     <--RETRY--            --DEAD-->  dead  --REPLAY--> waiting,  --PURGE--> gone
                     <-------- (in time) resting  <--REST-- prepared
    waiting --RECALL--> gone

A *resting* member stays in prepare until the time of its next attempt, so that nobody claims its twin before.

Members wait in the order of their *scores*. By the topic's kind, a score is a due time in milliseconds since the epoch
or a priority above 16. For every kind, a score of 16 or less is the number of retries left of a failed message.

The rules of `emq.storage.store` hold for the calls: many slots and members in one round trip, one answer for each entry
in the order of the entries, an error as the answer of a refused entry, and a `Failure` where a server is out of reach.
The layout on Redis is that of the published design, see `emq_stores.redis.keys`. Other programs that know the
layout may add members there.
"""

from __future__ import annotations

import enum
import math
import operator
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from emq.runtime import errors
from emq.storage.answers import Failure
from emq.storage.durability import Durability
from emq.storage.slot_rules import LATEST as LATEST
from emq.storage.slot_rules import Fold as Fold
from emq.storage.slot_rules import Keep as Keep
from emq.storage.slot_rules import Slot as Slot
from emq.storage.slot_rules import SlotKind as SlotKind
from emq.storage.slot_rules import resting_ms as resting_ms
from emq.storage.slot_rules import slot_sealed as slot_sealed
from emq.storage.slot_rules import told_score as told_score

RETRIES = 16
"""Retries left at the first claim of a message; also the highest score that is not a time or a priority."""


PAGE_BYTES = 8 << 20
"""Most bytes of bodies in a page of waiting or dead messages, without its last message."""


class SlotAdd(NamedTuple):
    """Put a member into a slot, or merge it with its waiting twin.

    Attributes:
        member: the identity of the message: two adds of equal members merge. On Redis, the sorted set holds these bytes
            as its member.
        score: due time or priority; the caller has checked that it is above 16.
        keep: decides on the score if the member waits already.
        body: for slots with bodies apart: the body that the handler gets.
        note: for slots with bodies apart: a few bytes of the caller's, stored with the member; the latest counts.
        fold: the rule by which bodies merge. A first add stores `emq.storage.folds.initial(fold, body)`.
        max_length: most members that may wait in the slot, or None; a merge always has room.
    """

    slot: Slot
    member: bytes
    score: float
    keep: Keep
    body: bytes = b""
    note: bytes = b""
    fold: Fold = LATEST
    max_length: int | None = None


class SlotClaim(NamedTuple):
    """Take up to `limit` members that may run now, as the owner of `epoch`.

    Attributes:
        until_ms: for kinds by time: take members that are due at this time or before.
    """

    slot: Slot
    limit: int
    epoch: int
    until_ms: int


class Entry(NamedTuple):
    """A claimed member.

    Attributes:
        score: the score with which the member waited.
        token: the name of this claim, for `SlotSettle`: `claimed second * 1000 + retries left after this delivery`, as
            in prepare. So a late settle cannot touch a later claim of the same member.
        merged: the number of adds that make up the member, if bodies are apart; else 1. Below 1 if the data beside the
            member is damaged; `body` then has the rest of it.
        beyond: the number of deliveries beyond those that retries count: 0 on the last counted one, 1 on the next.
        history: `(time in ms, reason)` of the member's failed attempts, oldest first, the last 16 at most.
    """

    member: bytes
    score: float
    token: int
    body: bytes
    note: bytes = b""
    merged: int = 1
    beyond: int = 0
    history: Sequence[tuple[int, str]] = ()

    @property
    def left(self) -> int:
        """Retries left after this delivery: 16 on the first one, 0 on the last."""
        return self.token % 1000


class SlotClaimed(NamedTuple):
    """The result of a `SlotClaim`.

    Attributes:
        entries: the claimed members, in the order in which they are to run; they are in prepare now.
        next_score: score of the next waiting member that may be claimed, or None: the next due time (in the past if
            more members are due), or the highest priority that is left. A member whose twin is in prepare may not be
            claimed.
        rest_ms: time when the first resting member may wait again, in milliseconds; call `recover` then. None if no
            member rests.
    """

    entries: Sequence[Entry]
    next_score: float | None
    rest_ms: int | None = None


class SlotVerdict(enum.StrEnum):
    """A change of a member's state; see the picture above."""

    ACK = "ack"
    RETRY = "retry"
    REST = "rest"
    """For a prepared member that failed: let it rest until `rest_ms`."""
    YIELD = "yield"
    """For a prepared member that was not started: RETRY if its twin waits; else leave it as it is."""
    DEAD = "dead"
    REPLAY = "replay"
    PURGE = "purge"
    RECALL = "recall"
    SEAL = "seal"
    """For the slot as a whole: refuse adds with `QueueSealed`, and replays, from now on."""
    OPEN = "open"
    """For the slot as a whole: undo SEAL. The answer is True if the slot was sealed."""

    @property
    def is_of_all(self) -> bool:
        """True for the verdicts on the slot as a whole, which ignore the member."""
        return self in (SlotVerdict.SEAL, SlotVerdict.OPEN)


class SlotSettle(NamedTuple):
    """Decide on one member.

    Attributes:
        token: the token of the claim, for verdicts on prepared members. The verdict has no effect if the member is not
            in prepare with this token.
        epoch: the owner's epoch, for verdicts on prepared members; None for the administration's REPLAY, PURGE and
            RECALL.
        score: for RETRY, YIELD, REST and REPLAY: the score with which the member waits again. If its twin waits
            already, the member merges into the twin: the twin keeps its score (but see `keep`), and bodies apart are
            folded, the twin's as the newer one. A failed member (REST, or RETRY with a reason) keeps the retries that
            its claim left, whatever its score. So in a slot by time, the score may be the time of the next attempt.
        reason: for RETRY and REST: the reason of the failure, which the store adds to the member's history; empty to
            give the member back without a failed attempt. For DEAD: the reason of the death.
        fold: for RETRY, YIELD, DEAD and REPLAY of slots with bodies apart. If the fold fails, a RETRY becomes DEAD with
            that reason, a REPLAY returns False, and a DEAD still takes effect, see `SortedStore.settle`.
        keep: for RETRY of a member that did not start: decides on the score if its twin waits already, as if this
            member had been added first. None for a member that did start: the twin's score counts.
        rest_ms: for REST: the time when the member waits again. Its stamp in prepare is the second after that time and
            names no claim, so other programs do not time it out before.
    """

    slot: Slot
    member: bytes
    verdict: SlotVerdict
    token: int = 0
    epoch: int | None = None
    score: float = 0
    reason: str = ""
    fold: Fold = LATEST
    keep: Keep | None = None
    rest_ms: int = 0


class Recover(NamedTuple):
    """Roll back claims that nobody will settle: claims of lower epochs, and claims that timed out.

    Resting members whose time has come wait again. The other resting members stay, except those with a stamp before
    `older_than_ms`.

    Members that another program has claimed may still run, so only `older_than_ms` rolls them back. A store that cannot
    tell whose claims are in prepare treats all of them so.

    Attributes:
        epoch: the owner's epoch. If it is higher than any that the slot has seen, all claims of former owners are
            rolled back.
        older_than_ms: if set, also roll back anybody's claims made before this time, except `held`.
        held: members that the caller still runs or has buffered.
        reason: the reason to put into the members' histories.
        lost: True if the answer of a claim was lost: roll back all other claims of owners as well, except `held`.
    """

    slot: Slot
    epoch: int
    older_than_ms: int | None = None
    held: Sequence[bytes] = ()
    reason: str = "its consumer was lost"
    lost: bool = False


class SlotState(NamedTuple):
    """The sizes of a slot.

    Attributes:
        waiting, prepared, dead: numbers of members in each state; the resting ones are among the prepared.
        due: number of waiting members that may run at the time asked for; all of them for `priority`.
        next_score: score of the first waiting member in claim order, or None.
        oldest_prepared_ms: time of the oldest claim in prepare, in milliseconds (whole seconds), or None.
        resting: number of members that wait for their next attempt.
    """

    waiting: int
    due: int
    prepared: int
    dead: int
    next_score: float | None
    oldest_prepared_ms: int | None
    resting: int = 0


class DeadMember(NamedTuple):
    """A dead letter of a slot.

    Attributes:
        reason: the reason of the last attempt.
        history: `(time in ms, reason)` of the failed attempts before the last one, oldest first, the last 16 at most.
            If this dead letter took the place of an earlier one, all attempts of the earlier one are among them.
        dead_ms: time of the death.
    """

    slot: Slot
    member: bytes
    body: bytes
    note: bytes
    reason: str
    history: tuple[tuple[int, str], ...]
    dead_ms: int


class Waiting(NamedTuple):
    """A waiting member, as inspection shows it."""

    member: bytes
    score: float
    body: bytes
    note: bytes = b""
    merged: int = 1


_score = operator.attrgetter("score")


def check_scores(asked: Sequence[SlotAdd] | Sequence[SlotSettle]) -> None:
    """Check scores. Every store calls this before it stores any of them.

    Raises:
        InvalidMessage: a score is not a finite number. Nothing of the call was applied; correct the score.
    """
    try:
        if math.isfinite(sum(map(_score, asked))):
            return
    except (TypeError, OverflowError):
        pass
    for each in asked:
        try:
            if math.isfinite(each.score):
                continue
        except (TypeError, OverflowError):
            pass
        raise errors.InvalidMessage(f"a score for slot {each.slot.name!r} is not a finite number; give one")


class SortedStore(Protocol):
    """Slots of sorted topics. Every call is safe to repeat unless it says otherwise.

    Order: members wait in the order of their scores; members of equal scores in any order, the same for `waiting` and
    `claim`.

    Retries left: a member whose score is above 16 is claimed with 16 left. A member of score n up to 16 is claimed with
    n - 1 left (at least 0). So a member that is put back each time with its `left` as score is delivered 17 times. The
    number of retries stays with the member until it is gone or dead, also if it is added again. If it merges with its
    waiting twin, the lower number counts.

    Waking: a claim arms the slot with its `next_score`, atomically with finding it. A member that comes before that
    score (by an add, RETRY, REPLAY or recovery, or when its prepared twin is settled) disarms the slot and wakes
    the claiming instance: `Store.watch` yields `Slot.address` there. A member of another program wakes nobody.

    Fencing: `claim`, `settle` and `recover` refuse an epoch below the highest that the slot has seen. `claim` and
    `recover` raise that highest epoch.
    """

    async def add(
        self, adds: Sequence[SlotAdd], durability: Durability = Durability.ACCEPTED
    ) -> Sequence[bool | errors.QueueSealed | errors.TopicFull | errors.InvalidMessage | Failure]:
        """Add members.

        Idempotent, except for the count and for folds that add up.

        Returns:
            For each add: True if the member was new, False if it was merged with a waiting one; `QueueSealed` if the
            slot is sealed, `TopicFull` if there is no room, `InvalidMessage` if the fold refuses the bodies. A member
            that is only in prepare or dead counts as new.

        Raises:
            InvalidMessage: a score is not a finite number (see `check_scores`; `settle` raises it, too). Nothing of the
                call was applied.
        """

    async def claim(
        self, claims: Sequence[SlotClaim], now_ms: int, max_bytes: int = 8 << 20
    ) -> Sequence[SlotClaimed | errors.NotOwner | Failure]:
        """Move members to prepare, stamped with `now_ms`, and return them.

        The store stops once it has gathered `max_bytes` of members, bodies and notes over all slots. It returns at
        least one member if one may run and be taken. A member whose twin is in prepare keeps waiting and does not hold
        up the members behind it. If the reply is lost, `recover` brings the claimed members back. Works on a full
        server.
        """

    async def settle(self, settles: Sequence[SlotSettle]) -> Sequence[bool | errors.NotOwner | Failure]:
        """Carry out verdicts. Works on a full server.

        If a member dies while an equal member is dead already, the two become one dead letter, in any slot. It has the
        time, reason and note of the newer one; the history begins with the attempts of the older one. Bodies apart are
        folded, and the counts of merged adds are added. If the fold fails, the store keeps only the newer body, and the
        reason says so. The same holds for a member that dies in `recover`, or because its RETRY could not be folded.

        Returns:
            For each verdict: False if the member did not have the state or token that the verdict needs.
        """

    async def recover(self, recovers: Sequence[Recover], now_ms: int) -> Sequence[int | errors.NotOwner | Failure]:
        """Roll back claims; see `Recover` for the choice of the members.

        A member with retries left waits again, with their number as score; else it is dead. A member that has rested
        until `now_ms` waits again with the score that REST gave; one call brings back at least 1,000 of these. If an
        equal member waits or is dead already, bodies apart merge by the fold of the slot's last add. `now_ms` stamps
        histories and deaths.

        Returns:
            For each entry: the number of members rolled back.
        """

    async def inspect(self, slots: Sequence[Slot], now_ms: int) -> Sequence[SlotState | Failure]:
        """Return the sizes of each slot; those of an unused slot are zero. Changes nothing."""

    async def dead(
        self, slot: Slot, after: tuple[int, bytes] = (0, b""), limit: int = 100, max_bytes: int = PAGE_BYTES
    ) -> list[DeadMember]:
        """Return a page of the slot's dead members in order of (dead_ms, member), beginning behind `after`.

        A page ends at `limit` members, or with the one that brings members, bodies and notes to `max_bytes`. Only an
        empty page means that there are no more.
        """

    async def waiting(self, slot: Slot, skip: int = 0, limit: int = 100, max_bytes: int = PAGE_BYTES) -> list[Waiting]:
        """Return a page of the slot's waiting members in claim order, without the first `skip`.

        A page ends as for `dead`.
        """
