"""The protocol of sorted topics: slots whose messages merge and come by priority or time (RMQ's semantics).

A *slot* is a group of a sorted topic. Its messages are *members* of an ordered set, each at most once while it waits:
one that is added again is merged. Consumption has two phases, so every member is in one of three states:

    waiting (store)  --claim-->  prepared  --ACK-->   gone
                     <--RETRY--            --DEAD-->  dead  --REPLAY--> waiting,  --PURGE--> gone
                     <-------- (in time) resting  <--REST-- prepared
    waiting --RECALL--> gone

A *resting* member stays in prepare until the time of its next attempt, so that its twin is not claimed before.

What a score means depends on the topic's kind: a due time in milliseconds since the epoch, or a priority above 16. A
score of 16 or less is the number of retries left, whatever the kind; it is what a failed message comes back with.

Calls are batched over slots and members, as in `emq.storage.store`: one round trip for many, answered in the order
asked, a refused entry's answer being the error. An entry whose server is out of reach is answered with a `Failure`, as
there. The layout on Redis is that of the published design, see `storage_adapters.redis.keys`, and members may be added
there by anybody who knows it.
"""

from __future__ import annotations

import enum
import math
import sys
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from emq import errors
from emq.storage.answers import Failure
from emq.storage.durability import Durability

RETRIES = 16
"""Retries that a message has when it is claimed first; also the highest score that is not a time or priority."""


PAGE_BYTES = 8 << 20
"""Most bytes of bodies that a page of waiting or dead messages brings, beside its last one."""

_LARGEST = sys.float_info.max


class SlotKind(enum.StrEnum):
    """How a slot orders its members; scores above 16 are meant, those of retries come with them as numbers do."""

    RANGE_MERGE = "range_merge"
    """By due time, lowest first, once it is due; a member that is added again keeps its first time."""
    PRIORITY = "priority"
    """By priority, highest first, at once; a member that is added again takes its latest priority."""
    FIXED_TIME = "fixed_time"
    """By due time, lowest first, once it is due; a member that is added again takes its latest time."""


class Slot(NamedTuple):
    """One slot, and the rules by which the store keeps it.

    Attributes:
        name: the group's, `<topic>/<index>`.
        kind: how members are ordered.
        apart: bodies and notes are kept apart from members (for topics with a merge key); otherwise a member is its
            own body, there are no notes, and merging leaves nothing to count.
    """

    name: str
    kind: SlotKind
    apart: bool = False

    @property
    def address(self) -> str:
        """Its name among those that `Store.watch` yields: with a slash, unlike its group's lane."""
        return self.name + "/"


class Keep(enum.StrEnum):
    """Which score a waiting member has after it was added again."""

    FIRST = "first"
    LAST = "last"
    LOWEST = "lowest"
    HIGHEST = "highest"


class Fold(NamedTuple):
    """How the body of a waiting member and that of one added later become one. See `emq.storage.folds` for the
    meanings.

    Attributes:
        name: "latest", "sum", "max", "min", "union", "count" or "lua".
        lua: for "lua", the text of a Lua chunk that gets the older and the newer body as `...` and returns one string.
    """

    name: str = "latest"
    lua: str = ""


LATEST = Fold()


class Add(NamedTuple):
    """Put a member into a slot, or merge it with its waiting twin.

    Attributes:
        member: what makes it the same message as another; on Redis, the member of the sorted set as it stands there.
        score: due time or priority; the caller has checked that it is above 16.
        keep: which score counts if it is waiting already.
        body: for slots with bodies apart: what the handler gets.
        note: for slots with bodies apart: a few bytes of the caller's that travel along; the latest counts.
        fold: how bodies merge. The stored body of a first add is `emq.storage.folds.initial(fold, body)`.
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


class Claim(NamedTuple):
    """Take up to `limit` members that may run now, as the owner of `epoch`.

    Attributes:
        until_ms: for kinds by time: take what is due at or before this.
    """

    slot: Slot
    limit: int
    epoch: int
    until_ms: int


class Entry(NamedTuple):
    """A claimed member.

    Attributes:
        score: with which it waited.
        token: `claimed second * 1000 + retries left after this delivery`, as it stands in prepare; it names this claim
            in `Settle`, so that a late settle cannot touch a later claim of the same member.
        merged: how many adds it stands for, where bodies are apart; else 1. Below 1 if what is stored beside the member
            is damaged; `body` has as much of it as there is.
        beyond: deliveries beyond those that can be counted down: on the last one 0, on the one after it 1.
        history: `(time in ms, reason)` of its failed attempts, oldest first, the last 16 at most.
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


class Claimed(NamedTuple):
    """Attributes:
    entries: in the order in which they are to run; they are in prepare now.
    next_score: score of the next waiting member that may be claimed, or None: the next due time (in the past if more
        is due), or the best priority that is left. A member whose twin is in prepare may not be claimed.
    rest_ms: when the first resting member is to be brought back by `recover`, or None.
    """

    entries: Sequence[Entry]
    next_score: float | None
    rest_ms: int | None = None


class Verdict(enum.StrEnum):
    """How a member leaves its state; see the picture above."""

    ACK = "ack"
    RETRY = "retry"
    REST = "rest"
    """Prepared, after a failure: let it rest until `rest_ms`."""
    YIELD = "yield"
    """Prepared, and not started: RETRY if its twin waits; else it stays as it is."""
    DEAD = "dead"
    REPLAY = "replay"
    PURGE = "purge"
    RECALL = "recall"
    SEAL = "seal"
    """Of the slot, whatever the member: refuse adds with `QueueSealed`, and replays, from now on."""
    OPEN = "open"
    """Of the slot, whatever the member: undo SEAL."""

    @property
    def is_of_all(self) -> bool:
        """It is about the slot as a whole."""
        return self in (Verdict.SEAL, Verdict.OPEN)


class Settle(NamedTuple):
    """Decide on one member.

    Attributes:
        token: of the claim, for what starts from prepare; the verdict is void if the member is not there under it.
        epoch: of the owner, for what starts from prepare; None for the administration's REPLAY, PURGE and RECALL.
        score: for RETRY, YIELD, REST and REPLAY: with which it waits again. If its twin waits already, it merges into
            the twin: the twin keeps its score (but see `keep`), and bodies apart are folded, the one that waits being
            the newer. One that failed (REST, or RETRY with a reason) has no more retries than its claim left, whatever
            the score is: so in a slot by time, the score may be the time of the next attempt.
        reason: for RETRY and REST: what failed, added to the member's history; empty to give it back unharmed. For
            DEAD: why.
        fold: for RETRY, YIELD, DEAD and REPLAY of slots with bodies apart. Where it fails, a RETRY becomes DEAD with
            that reason, a REPLAY answers False, and a DEAD holds all the same, see `SortedStore.settle`.
        keep: for RETRY of what did not start: which score counts if its twin waits already, this one being the first
            and the twin's the last, as if it had waited all the time. None for what did start: the twin's.
        rest_ms: for REST: when it waits again. Other programs leave it alone until their time-out after that: its stamp
            in prepare is the second after it, and names no claim.
    """

    slot: Slot
    member: bytes
    verdict: Verdict
    token: int = 0
    epoch: int | None = None
    score: float = 0
    reason: str = ""
    fold: Fold = LATEST
    keep: Keep | None = None
    rest_ms: int = 0


class Recover(NamedTuple):
    """Roll back what was claimed and will not be settled: what lower epochs claimed, and what timed out.

    Resting members whose time has come wait again; the others stay, but for those with a stamp before `older_than_ms`.

    What another program has claimed goes back only by `older_than_ms`, since it may still run. Where a store cannot
    tell whose claims are in prepare, all of them count as another's.

    Attributes:
        epoch: the owner's. If it is higher than any that the slot has seen, all that former owners claimed goes back.
        older_than_ms: if set, also what was claimed before this, whoever claimed it, except `held`.
        held: members that the caller still runs or has buffered.
        reason: for the history.
        lost: also all else that owners claimed, except `held`: the answer of a claim was lost.
    """

    slot: Slot
    epoch: int
    older_than_ms: int | None = None
    held: Sequence[bytes] = ()
    reason: str = "its consumer was lost"
    lost: bool = False


class SlotState(NamedTuple):
    """Attributes:
    waiting, prepared, dead: members in each state; the resting ones are among the prepared.
    due: of those that wait, how many may run at the time asked for; all of them for `priority`.
    next_score: of the first waiting member in claim order, or None.
    oldest_prepared_ms: when the member that is longest in prepare was claimed (whole seconds), or None.
    resting: members that wait for their next attempt.
    """

    waiting: int
    due: int
    prepared: int
    dead: int
    next_score: float | None
    oldest_prepared_ms: int | None
    resting: int = 0


class DeadMember(NamedTuple):
    """Attributes:
    reason: of the last attempt.
    history: `(time in ms, reason)` of the failed attempts before it, oldest first, the last 16 at most; among them
        those of an earlier dead letter that this one took the place of, its last one included.
    dead_ms: when it died.
    """

    slot: Slot
    member: bytes
    body: bytes
    note: bytes
    reason: str
    history: tuple[tuple[int, str], ...]
    dead_ms: int


class Waiting(NamedTuple):
    """A waiting member, for looking at."""

    member: bytes
    score: float
    body: bytes
    note: bytes = b""
    merged: int = 1


def check_scores(asked: Sequence[Add] | Sequence[Settle]) -> None:
    """What every store does first with scores that it is to keep.

    Raises:
        InvalidMessage: one is not a finite number. Nothing of the call was applied; correct the score.
    """
    try:
        if math.isfinite(sum([each.score for each in asked])):
            return
    except (TypeError, OverflowError):
        pass
    for each in asked:
        try:
            if math.isfinite(each.score):
                continue
        except (TypeError, OverflowError):
            pass
        raise errors.InvalidMessage(f"a score for slot {each.slot.name!r} is no finite number; give one")


_WHOLE = 1 << 53


def told_score(stored: float) -> float:
    """A score as stores tell it: an int where it is whole.

    EMQ stores finite ones only. An infinite one that another program has added counts as the largest finite number of
    its sign, so that it can be stored again; what is no number counts as 0, a message without retries left.
    """
    if not -_LARGEST <= stored <= _LARGEST:
        stored = 0.0 if math.isnan(stored) else math.copysign(_LARGEST, stored)
    # Beyond 2 ** 53 every score is whole, and one beyond 2 ** 64 could not be encoded as an int.
    return int(stored) if float(stored).is_integer() and abs(stored) < _WHOLE else float(stored)


def resting_ms(rest_ms: int) -> int:
    """The stamp in prepare of a member that rests so long, without its retries: later than that of any claim."""
    return (rest_ms // 1000 + 1) * 1000


def slot_sealed(slot: Slot) -> errors.QueueSealed:
    """What adapters answer an add with."""
    return errors.QueueSealed(f"slot {slot.name!r} belongs to a topic that was deleted; read the catalog again")


class SortedStore(Protocol):
    """Slots of sorted topics. Every call is safe to repeat unless it says otherwise.

    Members wait in the order of their scores; those of equal scores in any order that is the same for `waiting` and
    `claim`. Retries left: a member whose score is above 16 is claimed with 16 left, one of score n up to 16 with n - 1
    left (at least 0), so a member that is put back each time with its `left` as score is delivered 17 times. That also
    holds if it is added again meanwhile: the number with which it was put back stays with it, whatever its score, and
    the lower one counts when it merges with its waiting twin, until it is gone or dead.

    Waking: a claim arms the slot with its `next_score` (atomically with finding it). What comes before that (an add,
    RETRY, REPLAY, recovery, or a waiting twin whose prepared one is settled) disarms the slot and wakes the instance
    that claimed, which then finds `Slot.address` in `Store.watch`. A member added by a foreign producer wakes nobody.

    Fencing: claim, settle and recover refuse an epoch below the highest that the slot has seen; claim and recover
    raise it.
    """

    async def add(
        self, adds: Sequence[Add], durability: Durability = Durability.ACCEPTED
    ) -> Sequence[bool | errors.QueueSealed | errors.TopicFull | errors.InvalidMessage | Failure]:
        """Add members; True where the member was new, False where it was merged with a waiting one.

        Answers `QueueSealed` where the slot is sealed, `TopicFull` where there is no room, and
        `InvalidMessage` where the fold refuses the bodies.

        A member that is in prepare or dead only is new. Raises `InvalidMessage` for the whole call, nothing applied,
        where a score is not a finite number (see `check_scores`; so does `settle`).
        Not idempotent for folds that add up and for the count; otherwise a repeat merges with itself.
        """

    async def claim(
        self, claims: Sequence[Claim], now_ms: int, max_bytes: int = 8 << 20
    ) -> Sequence[Claimed | errors.NotOwner | Failure]:
        """Move members to prepare, stamped with `now_ms`, and return them.

        Takes no more once `max_bytes` of members and bodies are gathered over all slots (at least one member comes back
        if one may run and be taken); what is left shows in `next_score`.

        A member whose twin is in prepare stays where it is and does not stand in the way of those behind it.
        If the reply is lost, what it took comes back by `recover`. Works on a full server.
        """

    async def settle(self, settles: Sequence[Settle]) -> Sequence[bool | errors.NotOwner | Failure]:
        """Carry out verdicts; False where the member was not in the state, or under the token, that it starts from.

        A member that dies while its twin is dead becomes one dead letter with it, in any slot: time, reason and note
        are its own, the twin's attempts come first in the history. Bodies apart are folded, the one that dies now being
        the newer, and what they stand for adds up. Where the fold fails the newer body alone is kept, and the reason
        says so. The same holds for what dies because its RETRY could not be folded, and in `recover`.

        Works on a full server.
        """

    async def recover(self, recovers: Sequence[Recover], now_ms: int) -> Sequence[int | errors.NotOwner | Failure]:
        """Roll back: members with retries left wait again with that number as score, the others are dead; what has
        rested until `now_ms` waits again with the score it was given, 1,000 at least in one call.

        Where the twin waits or is dead already, bodies apart merge by the fold of the slot's last add.
        Answers how many were rolled back. `now_ms` stamps histories and deaths.
        """

    async def inspect(self, slots: Sequence[Slot], now_ms: int) -> Sequence[SlotState | Failure]:
        """Sizes of each slot; an unused one is all zero. Changes nothing."""

    async def dead(
        self, slot: Slot, after: tuple[int, bytes] = (0, b""), limit: int = 100, max_bytes: int = PAGE_BYTES
    ) -> list[DeadMember]:
        """A page of the slot's dead members in order of (dead_ms, member), those behind `after`.

        A page ends at `limit` members, or with the one that brings members and bodies to `max_bytes`. Only an empty
        page says that there are no more.
        """

    async def waiting(self, slot: Slot, skip: int = 0, limit: int = 100, max_bytes: int = PAGE_BYTES) -> list[Waiting]:
        """A page of the slot's waiting members in claim order, those behind the first `skip`.

        A page ends as for `dead`.
        """
