"""The protocols a store implements, and the plain records that pass through two of them.

`LogStore` holds the queues, `LaneStore` each group's lane (retries, delays, dead letters), `SortedStore` (see
`emq.storage.slot_store`) the slots of sorted topics.

Every call is batched over queues (one round trip for many) and is answered per queue, in the order asked, so that
one full, sealed or lost queue does not fail its neighbours: a refused entry's answer is the `EMQError` instance.

A store may lie on several servers. Where a server is out of reach, silent or full, the answer of each of its entries is
the error, an instance of `Failure`; the other entries are served, and do not wait for it beyond a deadline of seconds:

    StoreUnavailable   nothing of the entry was applied
    KeyDamaged         the same, because of what one key of the store holds; the text names key and remedy
    OutcomeUnknown     the entry may have been applied: the connection broke, or a deadline passed, after it was sent
    StoreFull          nothing of the entry was applied for lack of room

A call raises such an error only where it holds for all of its entries. See `emq.storage.answers` for reading the
answers.

Queues are named `<topic>/<group>/<priority>`, groups and their lanes `<topic>/<group>`; an adapter instance serves
one environment and keeps its keys apart from the other's. Adapters are found by the scheme of their URL through the
entry-point group `emq.stores`; see `storage_adapters` for those of this project and `emq.stores` for the lookup.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

from emq import errors
from emq.storage.answers import Failure as Failure  # part of the protocols
from emq.storage.durability import Durability as Durability  # part of the protocols
from emq.storage.marks import Mark as Mark  # part of the protocols
from emq.storage.slot_store import PAGE_BYTES as PAGE_BYTES  # part of the protocols
from emq.storage.slot_store import SortedStore


def group_of(queue: str) -> str:
    """The group's name, `<topic>/<group>`, of a queue's name."""
    return queue[: queue.rindex("/")]


def messages_lost(queue: str, known: int, tail: int | None) -> errors.MessagesLost:
    """What adapters answer with.

    Args:
        known: an offset of which the owner knows.
        tail: where the queue ends now, if that is known.
    """
    end = "" if tail is None else f" and ends at {tail} now"
    return errors.MessagesLost(
        f"queue {queue!r} has lost what was at offset {known}{end}: its store came back from a crash, start it again"
    )


# ---------------------------------------------------------------------------------------------------------- log store


class Put(NamedTuple):
    """Append `bodies` to `queue`, all or none.

    Attributes:
        max_length: most messages that the queue's *group* (all its priorities) may hold, or None.
        drop_oldest: at `max_length`, drop the oldest of this queue instead of refusing.
        siblings: the names of all queues of the group, needed only with `max_length`.
        layout: the topic's layout by which the bodies' keys came to this queue; the queue refuses a lower one than it
            was raised to. None where no body has a key.
    """

    queue: str
    bodies: Sequence[bytes]
    max_length: int | None = None
    drop_oldest: bool = False
    siblings: Sequence[str] = ()
    layout: int | None = None


class Read(NamedTuple):
    """Read at most `limit` messages of `queue` from offset `start` on, as the owner of `epoch`.

    Attributes:
        epoch: None is for observers: such a read is not fenced, fences nobody off and does not arm the queue.
        mark: a message that the owner has read before, which must still be there unless it was dropped, see
            `emq.storage.marks`; None where the owner knows of none.
    """

    queue: str
    start: int
    limit: int
    epoch: int | None
    mark: Mark | None = None


class Batch(NamedTuple):
    """What a read found.

    Attributes:
        offsets: ascending; a `range` where there were no holes.
        bodies: one for each offset.
        next: the offset to read from next. Offsets in [start, next) that are not in `offsets` are holes for certain.
        exhausted: the read reached the tail, and the queue is now armed: the next put to it wakes the reader (unless it
            only observes).
    """

    offsets: Sequence[int]
    bodies: Sequence[bytes]
    next: int
    exhausted: bool


class Bounds(NamedTuple):
    """[head, tail): head is the first offset not trimmed, tail the next to be assigned. Empty if equal."""

    head: int
    tail: int


class Trim(NamedTuple):
    """Drop everything below offset `upto`; `epoch` None is for administration and is not fenced.

    Attributes:
        seal: True to refuse all further puts to the queue, provided that nothing is left in it after the trim
            (atomically; otherwise it stays open); False to open it again; None to leave it as it is.
        layout: refuse all further puts of a lower layout with `QueueSealed`; never lowered. None to leave it as it is.
        mark: as for `Read`; nothing is dropped if that message is not there any more.
    """

    queue: str
    upto: int
    epoch: int | None
    seal: bool | None = None
    layout: int | None = None
    mark: Mark | None = None


class LogStore(Protocol):
    """FIFO queues addressed by offset.

    Attributes:
        first_offset: what an unused queue's first message gets.
        max_queue_qps: operations a second that one queue stands, or None where the store names no such limit.
    """

    first_offset: int
    max_queue_qps: float | None

    async def put(
        self, puts: Sequence[Put], durability: Durability = Durability.ACCEPTED
    ) -> Sequence[Sequence[int] | errors.EMQError]:
        """Append; answers the offsets of each put, or `TopicFull`, `QueueSealed`, `StoreFull`.

        Not idempotent: on `OutcomeUnknown` a repeat may store the messages twice (with the same message ids).
        """

    async def get(self, queue: str, offset: int) -> bytes | None:
        """The body at one offset, or None for a hole, a trimmed offset or one beyond the tail. Does not arm."""

    async def read(
        self, reads: Sequence[Read], max_bytes: int = 8 << 20
    ) -> Sequence[Batch | errors.NotOwner | errors.MessagesLost | Failure]:
        """Read many queues, and arm those whose tail was reached, atomically with reaching it.

        Stops early, with `exhausted` False, once `max_bytes` of bodies are gathered over all queues (at least one
        message comes back if there is one). Answers `NotOwner` where the store has seen a higher epoch for the
        queue's group; a higher epoch than any before fences off the lower ones from then on. Answers an owner with
        `MessagesLost`, and does not arm, where another message or none is at the mark's offset, and where `start` is
        beyond the tail. A mark below the head proves nothing and is passed over. Safe to repeat.
        """

    async def bounds(self, queues: Sequence[str]) -> Sequence[Bounds | Failure]:
        """Head and tail of each queue; an unused one has both at `first_offset`."""

    async def trim(self, trims: Sequence[Trim]) -> Sequence[bool | errors.NotOwner | errors.MessagesLost | Failure]:
        """Drop consumed messages; answers whether the queue is sealed now. Safe to repeat; never moves head back.

        Answers `MessagesLost`, and drops nothing, where the mark's message is not there any more.
        """


# --------------------------------------------------------------------------------------------------------- lane store


class Verdict(enum.StrEnum):
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
        return self in (Verdict.SEAL, Verdict.OPEN)


def lane_sealed(lane: str) -> errors.QueueSealed:
    """What adapters answer a producer's add with."""
    return errors.QueueSealed(f"group {lane!r} was retired or deleted; read the catalog again and publish anew")


class Add(NamedTuple):
    """Put an entry into a slot: into its store, due at `due_ms`, or straight into its dead letters if `reason` is set.

    An id that the slot already has (waiting, prepared or dead) is left as it is, so an add may be repeated. `epoch` is
    the owner's, for a message that moves here from its log queue; None for a producer, who is not fenced. `priority` is
    from 0, the highest, to 15.
    """

    slot: str
    id: str
    body: bytes
    due_ms: int
    reason: str | None = None
    epoch: int | None = None
    priority: int = 0


class Claim(NamedTuple):
    """Take up to `limit` entries that are due, as the owner of `epoch`; those of higher priorities first.

    `rooms` says how many at most of each priority, from the highest on; what is lower than its last one counts as that.
    Empty for no such bound. So what waits of a low priority never keeps a high one from being claimed.
    """

    slot: str
    limit: int
    epoch: int
    rooms: Sequence[int] = ()


class Claimed(NamedTuple):
    """Attributes:
    entries: (id, body), by priority and, within one, in the order of their due times; they are in prepare now.
    next_due_ms: due time of the slot's next waiting entry, or None; may be in the past when more is due.
    """

    entries: Sequence[tuple[str, bytes]]
    next_due_ms: int | None


class Settle(NamedTuple):
    """Decide on one entry, or seal or open its lane. `epoch` None goes with administration's verdicts only, `priority`
    with RETRY and REPLAY."""

    slot: str
    id: str
    verdict: Verdict
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


class DeadLetter(NamedTuple):
    slot: str
    id: str
    body: bytes
    reason: str
    dead_ms: int


class LaneState(NamedTuple):
    """Sizes of a slot's three states and the due time of its next waiting entry."""

    waiting: int
    prepared: int
    dead: int
    next_due_ms: int | None


class LaneStore(Protocol):
    """Entries with a due time and a priority, consumed in two phases (store -> prepare -> gone).

    States of an entry: *waiting* (added, or retried), *prepared* (claimed), *dead* (used up or added so); `Verdict`
    lists what moves it. Time is in milliseconds since the epoch; "due" is decided by the caller's `now_ms`, so that
    simulations can run on their own clock.
    """

    async def add(
        self, adds: Sequence[Add], durability: Durability = Durability.ACCEPTED
    ) -> Sequence[bool | errors.NotOwner | errors.QueueSealed | Failure]:
        """Add entries; True where the id was new, `QueueSealed` for a producer whose lane is sealed. Safe to repeat.

        Fenced where an epoch is given: a group's epoch is the same one that `LogStore.read` and `claim` have raised.
        """

    async def claim(
        self, claims: Sequence[Claim], now_ms: int, max_bytes: int = 8 << 20
    ) -> Sequence[Claimed | errors.NotOwner | Failure]:
        """Move due entries to prepare and return them. Fenced like `LogStore.read`.

        Takes no more once `max_bytes` of bodies are gathered over all lanes (at least one entry comes back if one is
        due and may be taken); what is left due shows in `next_due_ms`.

        Arms the slot with its next due time: an add, retry or replay that is due earlier wakes the claimer. Safe to
        repeat after a lost reply: what the lost call had prepared comes back through `recover`.
        """

    async def settle(self, settles: Sequence[Settle]) -> Sequence[bool | errors.NotOwner | Failure]:
        """Carry out verdicts; False where the entry was not in the state that the verdict starts from."""

    async def recover(
        self, slots: Sequence[tuple[str, int]], older_than_ms: int | None = None
    ) -> Sequence[int | Failure]:
        """Return prepared entries to the store, of their priority and due as they were: those claimed under a lower
        epoch than given with the slot, and, if `older_than_ms` is set, those claimed before it. Answers how many per
        slot."""

    async def inspect(self, slots: Sequence[str]) -> Sequence[LaneState | Failure]:
        """Sizes and next due time of each slot; an unused slot is all zero."""

    async def dead(
        self, slot: str, after: tuple[int, str] = (0, ""), limit: int = 100, max_bytes: int = PAGE_BYTES
    ) -> list[DeadLetter]:
        """A page of the slot's dead letters in order of (dead_ms, id), those behind `after`.

        A page ends at `limit` letters, or with the one that brings its bodies to `max_bytes`. Only an empty page says
        that there are no more.
        """

    async def waiting(
        self, slot: str, skip: int = 0, limit: int = 100, max_bytes: int = PAGE_BYTES
    ) -> list[WaitingEntry]:
        """A page of the slot's waiting entries in order of (due_ms, id), those behind the first `skip`.

        A page ends as for `dead`.
        """


class Store(Protocol):
    """What an adapter's factory returns for a URL: all its stores over one connection pool, and their wake-ups.

    A store may have a method `follow(clock)`, which is called once after it was opened. The store then stamps dead
    letters and failed attempts by that clock, which keeps the environment's time; else by the machine's.

    Attributes:
        shared: True if several host processes may use the store at once.
    """

    @property
    def log(self) -> LogStore: ...

    @property
    def lanes(self) -> LaneStore: ...

    @property
    def sorted(self) -> SortedStore: ...

    @property
    def shared(self) -> bool: ...

    def watch(self) -> AsyncIterator[Sequence[str] | None]:
        """Yield names of armed queues that received messages, of armed lanes with an earlier due time, and addresses of
        armed slots with something earlier or more urgent.

        None means "wake-ups may have been lost, look at everything you own". At most one watcher for each store
        instance; arming by `read` and `claim` directs the wake-up to the instance that armed.
        """

    async def close(self) -> None:
        """Release connections; a watcher ends. Safe to repeat."""
