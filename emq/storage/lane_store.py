"""The protocol of lanes, and its records. `emq.storage.store` has the rules for all calls.

Each group has a *lane*: retries, delayed messages and schedules wait there until they are due, and dead letters stay
there.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from emq.runtime import errors
from emq.storage import message
from emq.storage.answers import Failure
from emq.storage.durability import Durability
from emq.storage.slot_store import PAGE_BYTES

TAKEN_S = 3600
"""Least seconds for which a lane remembers an entry that was taken `for_good`, up to `MOST_TAKEN` of them."""

AHEAD_S = 86_400
"""Most seconds by which an operator's clock may be ahead of the others' without making lanes forget sooner."""

MOST_TAKEN = 10_000
"""Number of such entries that one lane remembers: the last ones taken, whatever the operators' clocks say."""


class LaneVerdict(enum.StrEnum):
    """A change of an entry's state."""

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
    """For the lane as a whole: refuse producers' adds with `QueueSealed`, and replays, from now on."""
    OPEN = "open"
    """For the lane as a whole: undo SEAL. The answer is True if the lane was sealed."""
    FORGET = "forget"
    """For the lane as a whole: forget which entries were taken `for_good`."""

    @property
    def is_of_all(self) -> bool:
        """True for the verdicts on the lane as a whole, which ignore the id."""
        return self in (LaneVerdict.SEAL, LaneVerdict.OPEN, LaneVerdict.FORGET)


def lane_sealed(lane: str) -> errors.QueueSealed:
    """The error for a producer's add to a sealed lane."""
    return errors.QueueSealed(f"group {lane!r} was retired or deleted; read the catalog, then publish again")


class LaneAdd(NamedTuple):
    """Put an entry into a lane: into its store, due at `due_ms`, or straight into its dead letters if `reason` is set.

    If the lane already has the id (waiting, prepared or dead), the store leaves that entry as it is, so an add may be
    repeated.

    Attributes:
        id: the identity of the message, see `emq.storage.message.Message.uid`; the same for a schedule, which has no
            nonce.
        epoch: the owner's epoch, for a message that moves here from its log queue; None for a producer, who is not
            fenced.
        priority: from 0, the highest, to 15.
        since_ms: for an add that an earlier call may have carried out: when the host first sent it, or claimed the
            entry (the store may have forgotten it in a crash). If an operator has taken the id `for_good` since then,
            the store leaves the entry out and returns None. None for a first add. The clocks of host and operator are
            compared: if the operator's is behind, an entry taken shortly after `since_ms` may come back; if it is
            ahead, an entry whose id was taken shortly before may be left out.
        remember_ms: milliseconds for which the lane's group remembers the `label`, also when the entry is gone; it
            leaves out adds of a remembered label. 0 for adds that no publish repeats. See `log_store.Put`.
    """

    lane: str
    id: str
    body: bytes
    due_ms: int
    reason: str | None = None
    epoch: int | None = None
    priority: int = 0
    since_ms: int | None = None
    remember_ms: int = 0

    @property
    def label(self) -> str:
        """The message's id, as its publisher chose it; see `emq.storage.message.label`."""
        return message.label(self.id)


class LaneClaim(NamedTuple):
    """Take up to `limit` entries that are due, as the owner of `epoch`; those of higher priorities first.

    Attributes:
        rooms: the most entries to take of each priority, from the highest on; the last one also counts for all lower
            priorities. Empty for no bound. So entries of a low priority never keep those of a high one in the store.
    """

    lane: str
    limit: int
    epoch: int
    rooms: Sequence[int] = ()


class LaneClaimed(NamedTuple):
    """The result of a `LaneClaim`.

    Attributes:
        entries: (id, body), by priority and, within one, in the order of their due times; they are in prepare now.
        next_due_ms: due time of the lane's next waiting entry, or None; in the past if more entries are due.
        is_empty: the lane has no entry now, in none of its three states.
    """

    entries: Sequence[tuple[str, bytes]]
    next_due_ms: int | None
    is_empty: bool


class LaneSettle(NamedTuple):
    """Decide on one entry, or on its lane as a whole.

    Attributes:
        epoch: the owner's epoch; None for verdicts of the administration only.
        priority: for RETRY and REPLAY.
        for_good: for RECALL and PURGE: an operator takes the entry, and no host's repeated add may bring it back (see
            `LaneAdd.since_ms`). The lane remembers this for `TAKEN_S`, or until it takes an add of the id. False if the
            entry is moved elsewhere.
    """

    lane: str
    id: str
    verdict: LaneVerdict
    epoch: int | None = None
    due_ms: int = 0
    body: bytes = b""
    reason: str = ""
    priority: int = 0
    for_good: bool = False


class WaitingEntry(NamedTuple):
    id: str
    body: bytes
    due_ms: int
    priority: int = 0


class EntryState(enum.StrEnum):
    """The state of an entry; see `LaneStore`."""

    WAITING = "waiting"
    PREPARED = "prepared"
    DEAD = "dead"


class Asked(NamedTuple):
    """A search in a lane by an id: the identity of one entry, or the label of any number.

    Attributes:
        after: the search goes on behind this identity, in the order of characters; empty at first.
    """

    lane: str
    id: str
    after: str = ""


class FoundEntry(NamedTuple):
    id: str
    state: EntryState


MOST_FOUND = 1_000
"""Most entries that `LaneStore.find` returns for one search; then there may be more behind the last one."""


class DeadEntry(NamedTuple):
    lane: str
    id: str
    body: bytes
    reason: str
    dead_ms: int


class LaneState(NamedTuple):
    """Sizes of a lane's three states, the due time of its next waiting entry, and whether it is sealed."""

    waiting: int
    prepared: int
    dead: int
    next_due_ms: int | None
    sealed: bool = False


class LaneStore(Protocol):
    """Entries with a due time and a priority, consumed in two phases (store -> prepare -> gone).

    States of an entry: *waiting* (added, or retried), *prepared* (claimed), *dead* (out of attempts, or added as dead).
    `LaneVerdict` lists the changes between them. Times are in milliseconds since the epoch. The caller's `now_ms`
    decides which entries are due, so that simulations can use their own clock.
    """

    async def add(
        self, adds: Sequence[LaneAdd], durability: Durability = Durability.ACCEPTED
    ) -> Sequence[bool | errors.NotOwner | errors.QueueSealed | Failure | None]:
        """Add entries. Safe to repeat.

        An add with an epoch is fenced by the group's epoch, which `LogStore.read`, `claim` and `recover` raise.

        Returns:
            For each add: True if the entry was added, False if the lane has the id already or its group remembers the
            id, None if an operator has taken the id since `since_ms`; `QueueSealed` for a producer's add to a sealed
            lane.
        """

    async def claim(
        self, claims: Sequence[LaneClaim], now_ms: int, max_bytes: int = 8 << 20
    ) -> Sequence[LaneClaimed | errors.NotOwner | Failure]:
        """Move due entries to prepare and return them. Fenced like `LogStore.read`.

        The store stops once it has gathered `max_bytes` of bodies over all lanes. It returns at least one entry if one
        is due and may be taken. Arms the lane with its next due time: an add, retry or replay that is due earlier wakes
        the claimer. Safe to repeat after a lost reply: `recover` brings back the entries that the lost call had
        prepared.
        """

    async def settle(self, settles: Sequence[LaneSettle]) -> Sequence[bool | errors.NotOwner | Failure]:
        """Carry out verdicts; return False for an entry that was not in the state that its verdict needs.

        A RETRY may be repeated after a lost reply, when the entry was claimed again already: an entry that was claimed
        with the due time and the body of the verdict stays claimed, and the answer is True.
        """

    async def recover(
        self, lanes: Sequence[tuple[str, int]], older_than_ms: int | None = None
    ) -> Sequence[int | errors.NotOwner | Failure]:
        """Let prepared entries wait again, with the priority and the due time that they had.

        Fenced by the group's epoch, which it raises, as `claim` does.

        Args:
            lanes: (lane, epoch): entries that were claimed under a lower epoch wait again.
            older_than_ms: if set, so do entries that were claimed before this time.

        Returns:
            The number of such entries of each lane.
        """

    async def inspect(self, lanes: Sequence[str]) -> Sequence[LaneState | Failure]:
        """Return the state of each lane; the sizes of an unused lane are zero."""

    async def find(self, asked: Sequence[Asked]) -> Sequence[Sequence[FoundEntry] | Failure]:
        """Find the entries of lanes by their id: an identity, or a label, which many may have.

        Returns:
            For each search, `MOST_FOUND` entries at most, in the order of their identities. The time does not grow with
            the number of entries of other ids, except in the memory store, and for ids that begin with `<id>#`.
        """

    async def dead(
        self, lane: str, after: tuple[int, str] = (0, ""), limit: int = 100, max_bytes: int = PAGE_BYTES
    ) -> list[DeadEntry]:
        """Return a page of the lane's dead letters in order of (dead_ms, id), beginning behind `after`.

        A page ends at `limit` letters, or with the one that brings its bodies to `max_bytes`. Only an empty page means
        that there are no more.
        """

    async def waiting(
        self, lane: str, skip: int = 0, limit: int = 100, max_bytes: int = PAGE_BYTES
    ) -> list[WaitingEntry]:
        """Return a page of the lane's waiting entries in order of (due_ms, id), without the first `skip`.

        A page ends as for `dead`.
        """
