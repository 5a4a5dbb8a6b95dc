"""The protocol of log queues, and the records that pass through it. `emq.storage.store` has the rules for all calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from emq import errors
from emq.storage.answers import Failure
from emq.storage.durability import Durability
from emq.storage.marks import Mark


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
