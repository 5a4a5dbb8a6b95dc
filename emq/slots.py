"""The protocol of sorted topics: slots whose messages merge and come by priority or time (RMQ's semantics).

A *slot* is a group of a sorted topic. Its messages are *members* of an ordered set, each at most once while it waits:
one that is added again is merged. Consumption has two phases, so every member is in one of three states:

    waiting (store)  --claim-->  prepared  --ACK-->   gone
                     <--RETRY--            --DEAD-->  dead  --REPLAY--> waiting,  --PURGE--> gone
    waiting --RECALL--> gone

What a score means depends on the topic's kind: a due time in milliseconds since the epoch, or a priority above 16. A
score of 16 or less is the number of retries left, whatever the kind; it is what a failed message comes back with.

Calls are batched over slots and members, as in `emq.storage`: one round trip for many, answered in the order asked, a
refused entry's answer being the error. The layout on Redis is that of the published design, see
`storage_adapters.redis.keys`, and members may be added there by anybody who knows it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from emq import errors
from emq.durability import Durability

RETRIES = 16
"""Retries that a message has when it is claimed first; also the highest score that is not a time or priority."""


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
    """How the body of a waiting member and that of one added later become one. See `emq.folds` for the meanings.

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
        fold: how bodies merge. The stored body of a first add is `emq.folds.initial(fold, body)`.
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
        merged: how many adds it stands for, where bodies are apart; else 1.
    """

    member: bytes
    score: float
    token: int
    body: bytes
    note: bytes = b""
    merged: int = 1

    @property
    def left(self) -> int:
        """Retries left after this delivery: 16 on the first one, 0 on the last."""
        return self.token % 1000


class Claimed(NamedTuple):
    """Attributes:
    entries: in the order in which they are to run; they are in prepare now.
    next_score: score of the next waiting member that may be claimed, or None: the next due time (in the past if more
        is due), or the best priority that is left. A member whose twin is in prepare may not be claimed.
    """

    entries: Sequence[Entry]
    next_score: float | None


class Verdict(enum.StrEnum):
    """How a member leaves its state; see the picture above."""

    ACK = "ack"
    RETRY = "retry"
    DEAD = "dead"
    REPLAY = "replay"
    PURGE = "purge"
    RECALL = "recall"


class Settle(NamedTuple):
    """Decide on one member.

    Attributes:
        token: of the claim, for ACK, RETRY and DEAD; the verdict is void if the member is not in prepare under it.
        epoch: of the owner, for ACK, RETRY and DEAD; None for the administration's REPLAY, PURGE and RECALL.
        score: for RETRY and REPLAY: with which it waits again. If its twin waits already, it merges into the twin: the
            twin keeps its score, and bodies apart are folded, the one that waits being the newer.
        reason: for RETRY: what failed, added to the member's history; empty to give it back unharmed. For DEAD: why.
        fold: for RETRY, DEAD and REPLAY of slots with bodies apart. Where it fails, a RETRY becomes DEAD with that
            reason, a REPLAY answers False, and a DEAD holds all the same, see `SortedStore.settle`.
    """

    slot: Slot
    member: bytes
    verdict: Verdict
    token: int = 0
    epoch: int | None = None
    score: float = 0
    reason: str = ""
    fold: Fold = LATEST


class Recover(NamedTuple):
    """Roll back what was claimed and will not be settled: what lower epochs claimed, and what timed out.

    Attributes:
        epoch: the owner's. If it is higher than any that the slot has seen, everything in prepare goes back.
        older_than_ms: if set, also what was claimed before this, except `held`.
        held: members that the caller still runs or has buffered.
        reason: for the history.
    """

    slot: Slot
    epoch: int
    older_than_ms: int | None = None
    held: Sequence[bytes] = ()
    reason: str = "its consumer was lost"


class SlotState(NamedTuple):
    """Attributes:
    waiting, prepared, dead: members in each state.
    due: of those that wait, how many may run at the time asked for; all of them for `priority`.
    next_score: of the first waiting member in claim order, or None.
    oldest_prepared_ms: when the member that is longest in prepare was claimed (whole seconds), or None.
    """

    waiting: int
    due: int
    prepared: int
    dead: int
    next_score: float | None
    oldest_prepared_ms: int | None


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


class SortedStore(Protocol):
    """Slots of sorted topics. Every call is safe to repeat unless it says otherwise.

    Members wait in the order of their scores; those of equal scores in any order that is the same for `waiting` and
    `claim`. Retries left: a member whose score is above 16 is claimed with 16 left, one of score n up to 16 with n - 1
    left (at least 0), so a member that is put back each time with its `left` as score is delivered 17 times.

    Waking: a claim arms the slot with its `next_score` (atomically with finding it). What comes before that (an add,
    RETRY, REPLAY, recovery, or a waiting twin whose prepared one is settled) disarms the slot and wakes the instance
    that claimed, which then finds `Slot.address` in `Store.watch`. A member added by a foreign producer wakes nobody.

    Fencing: claim, settle and recover refuse an epoch below the highest that the slot has seen; claim and recover
    raise it.
    """

    async def add(
        self, adds: Sequence[Add], durability: Durability = Durability.ACCEPTED
    ) -> list[bool | errors.TopicFull | errors.InvalidMessage]:
        """Add members; True where the member was new, False where it was merged with a waiting one.

        Answers `TopicFull` where there is no room, `InvalidMessage` where the fold refuses the bodies.

        A member that is in prepare or dead only is new. Raises `StoreFull` for the whole call, nothing applied.
        Not idempotent for folds that add up and for the count; otherwise a repeat merges with itself.
        """

    async def claim(self, claims: Sequence[Claim], now_ms: int) -> list[Claimed | errors.NotOwner]:
        """Move members to prepare, stamped with `now_ms`, and return them.

        A member whose twin is in prepare stays where it is and does not stand in the way of those behind it.
        If the reply is lost, what it took comes back by `recover`. Works on a full server.
        """

    async def settle(self, settles: Sequence[Settle]) -> list[bool | errors.NotOwner]:
        """Carry out verdicts; False where the member was not in the state, or under the token, that it starts from.

        A member that dies while its twin is dead becomes one dead letter with it, in any slot: time, reason and note
        are its own, the twin's attempts come first in the history. Bodies apart are folded, the one that dies now being
        the newer, and what they stand for adds up. Where the fold fails the newer body alone is kept, and the reason
        says so. The same holds for what dies because its RETRY could not be folded, and in `recover`.

        Works on a full server.
        """

    async def recover(self, recovers: Sequence[Recover], now_ms: int) -> list[int | errors.NotOwner]:
        """Roll back: members with retries left wait again with that number as score, the others are dead.

        Where the twin waits or is dead already, bodies apart merge by the fold of the slot's last add.
        Answers how many left prepare. `now_ms` stamps histories and deaths.
        """

    async def inspect(self, slots: Sequence[Slot], now_ms: int) -> list[SlotState]:
        """Sizes of each slot; an unused one is all zero. Changes nothing."""

    async def dead(self, slot: Slot, after: tuple[int, bytes] = (0, b""), limit: int = 100) -> list[DeadMember]:
        """A page of the slot's dead members in order of (dead_ms, member), those behind `after`."""

    async def waiting(self, slot: Slot, skip: int = 0, limit: int = 100) -> list[Waiting]:
        """A page of the slot's waiting members in claim order, those behind the first `skip`."""
