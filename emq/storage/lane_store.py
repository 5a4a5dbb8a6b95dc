"""The protocol of lanes, and the records that pass through it. `emq.storage.store` has the rules for all calls.

Each group has a lane: retries, delayed messages and schedules wait there until they are due, and dead letters stay.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from emq import errors
from emq.storage.answers import Failure
from emq.storage.durability import Durability
from emq.storage.slot_store import PAGE_BYTES


class LaneVerdict(enum.StrEnum):
    """How a claimed or dead entry leaves its state."""

    ACK = "ack"
    """prepare -> gone."""
    RETRY = "retry"
    """prepare -> store, with a new due time and body."""
    DEAD = "dead"
    """prepare -> dead, with a reason and body."""
    REPLAY = "replay"
    """dead -> store, with a new due time and body; administration, not fenced."""
    PURGE = "purge"
    """dead -> gone; administration, not fenced."""
    RECALL = "recall"
    """store -> gone: taken back before it was claimed; administration, not fenced."""
    SEAL = "seal"
    """Of the lane, whatever the id: refuse producers' adds with `QueueSealed`, and replays, from now on."""
    OPEN = "open"
    """Of the lane, whatever the id: undo SEAL."""

    @property
    def is_of_all(self) -> bool:
        """It is about the lane as a whole."""
        return self in (LaneVerdict.SEAL, LaneVerdict.OPEN)


def lane_sealed(lane: str) -> errors.QueueSealed:
    """What adapters answer a producer's add with."""
    return errors.QueueSealed(f"group {lane!r} was retired or deleted; read the catalog again and publish anew")


class LaneAdd(NamedTuple):
    """Put an entry into a lane: into its store, due at `due_ms`, or straight into its dead letters if `reason` is set.

    An id that the lane already has (waiting, prepared or dead) is left as it is, so an add may be repeated. `epoch` is
    the owner's, for a message that moves here from its log queue; None for a producer, who is not fenced. `priority` is
    from 0, the highest, to 15.
    """

    lane: str
    id: str
    body: bytes
    due_ms: int
    reason: str | None = None
    epoch: int | None = None
    priority: int = 0


class LaneClaim(NamedTuple):
    """Take up to `limit` entries that are due, as the owner of `epoch`; those of higher priorities first.

    `rooms` says how many at most of each priority, from the highest on; what is lower than its last one counts as that.
    Empty for no such bound. So what waits of a low priority never keeps a high one from being claimed.
    """

    lane: str
    limit: int
    epoch: int
    rooms: Sequence[int] = ()


class LaneClaimed(NamedTuple):
    """Attributes:
    entries: (id, body), by priority and, within one, in the order of their due times; they are in prepare now.
    next_due_ms: due time of the lane's next waiting entry, or None; may be in the past when more is due.
    """

    entries: Sequence[tuple[str, bytes]]
    next_due_ms: int | None


class LaneSettle(NamedTuple):
    """Decide on one entry, or seal or open its lane. `epoch` None goes with administration's verdicts only, `priority`
    with RETRY and REPLAY."""

    lane: str
    id: str
    verdict: LaneVerdict
    epoch: int | None = None
    due_ms: int = 0
    body: bytes = b""
    reason: str = ""
    priority: int = 0


class WaitingEntry(NamedTuple):
    id: str
    body: bytes
    due_ms: int
    priority: int = 0


class DeadEntry(NamedTuple):
    lane: str
    id: str
    body: bytes
    reason: str
    dead_ms: int


class LaneState(NamedTuple):
    """Sizes of a lane's three states and the due time of its next waiting entry."""

    waiting: int
    prepared: int
    dead: int
    next_due_ms: int | None


class LaneStore(Protocol):
    """Entries with a due time and a priority, consumed in two phases (store -> prepare -> gone).

    States of an entry: *waiting* (added, or retried), *prepared* (claimed), *dead* (used up or added so); `LaneVerdict`
    lists what moves it. Time is in milliseconds since the epoch; "due" is decided by the caller's `now_ms`, so that
    simulations can run on their own clock.
    """

    async def add(
        self, adds: Sequence[LaneAdd], durability: Durability = Durability.ACCEPTED
    ) -> Sequence[bool | errors.NotOwner | errors.QueueSealed | Failure]:
        """Add entries; True where the id was new, `QueueSealed` for a producer whose lane is sealed. Safe to repeat.

        Fenced where an epoch is given: a group's epoch is the same one that `LogStore.read` and `claim` have raised.
        """

    async def claim(
        self, claims: Sequence[LaneClaim], now_ms: int, max_bytes: int = 8 << 20
    ) -> Sequence[LaneClaimed | errors.NotOwner | Failure]:
        """Move due entries to prepare and return them. Fenced like `LogStore.read`.

        Takes no more once `max_bytes` of bodies are gathered over all lanes (at least one entry comes back if one is
        due and may be taken); what is left due shows in `next_due_ms`.

        Arms the lane with its next due time: an add, retry or replay that is due earlier wakes the claimer. Safe to
        repeat after a lost reply: what the lost call had prepared comes back through `recover`.
        """

    async def settle(self, settles: Sequence[LaneSettle]) -> Sequence[bool | errors.NotOwner | Failure]:
        """Carry out verdicts; False where the entry was not in the state that the verdict starts from."""

    async def recover(
        self, lanes: Sequence[tuple[str, int]], older_than_ms: int | None = None
    ) -> Sequence[int | Failure]:
        """Return prepared entries to the store, of their priority and due as they were: those claimed under a lower
        epoch than given with the lane, and, if `older_than_ms` is set, those claimed before it. Returns how many
        of each lane."""

    async def inspect(self, lanes: Sequence[str]) -> Sequence[LaneState | Failure]:
        """Sizes and next due time of each lane; an unused lane is all zero."""

    async def dead(
        self, lane: str, after: tuple[int, str] = (0, ""), limit: int = 100, max_bytes: int = PAGE_BYTES
    ) -> list[DeadEntry]:
        """A page of the lane's dead letters in order of (dead_ms, id), those behind `after`.

        A page ends at `limit` letters, or with the one that brings its bodies to `max_bytes`. Only an empty page says
        that there are no more.
        """

    async def waiting(
        self, lane: str, skip: int = 0, limit: int = 100, max_bytes: int = PAGE_BYTES
    ) -> list[WaitingEntry]:
        """A page of the lane's waiting entries in order of (due_ms, id), those behind the first `skip`.

        A page ends as for `dead`.
        """
