"""The protocol of log queues, and its records. `emq.storage.store` has the rules for all calls."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from emq.runtime import errors
from emq.storage.answers import Failure
from emq.storage.durability import Durability
from emq.storage.marks import Mark


def messages_lost(queue: str, known: int, tail: int | None) -> errors.MessagesLost:
    """The error for a queue that has lost messages.

    Args:
        known: an offset where the owner has read a message.
        tail: the end of the queue now, or None if it is not known.
    """
    end = "" if tail is None else f" and ends at {tail} now"
    return errors.MessagesLost(
        f"queue {queue!r} has lost the message at offset {known}{end}: its store came back from a crash, start it again"
    )


def queue_sealed(queue: str, layout: int) -> errors.QueueSealed:
    """The error for a put to a sealed queue, or by a layout below `layout`, to which the queue was raised."""
    return errors.QueueSealed(f"queue {queue!r} was retired; read the catalog, then publish again", layout)


REPEATED = -1
"""Stands for the offset of a body that a put left out, because the group remembers its id."""


def fresh_places(ids: Sequence[str], is_remembered: Callable[[str], bool]) -> dict[str, int]:
    """Return the ids that a group does not remember, each once, with their places in `ids`."""
    found: dict[str, int] = {}
    for place, id_ in enumerate(ids):
        if not is_remembered(id_):
            found.setdefault(id_, place)
    return found


def spread(offsets: Sequence[int], places: Iterable[int], count: int) -> Sequence[int]:
    """Return one offset for each of the `count` bodies of a put; only those at `places` were stored."""
    if len(offsets) == count:
        return offsets
    stored = dict(zip(places, offsets, strict=True))
    return [stored.get(place, REPEATED) for place in range(count)]


class Put(NamedTuple):
    """Append `bodies` to `queue`, all or none.

    Attributes:
        max_length: most messages that the queue's *group* (all its priorities) may hold, or None.
        drop_oldest: at `max_length`, drop the oldest of this queue instead of refusing.
        siblings: the names of all queues of the group, needed only with `max_length`.
        layout: the topic's layout by which the producer chose this queue. The queue refuses a layout below the one that
            it was raised to. None if no body has a key.
        ids: the id of each body, if the group is to remember them; else empty. A body whose id the group remembers
            already, or that stands twice in the put, is left out.
        remember_ms: milliseconds, by the store's clock, for which the group remembers the ids; above 0 if there are
            any. A trim that seals a queue makes its group forget all ids.
    """

    queue: str
    bodies: Sequence[bytes]
    max_length: int | None = None
    drop_oldest: bool = False
    siblings: Sequence[str] = ()
    layout: int | None = None
    ids: Sequence[str] = ()
    remember_ms: int = 0


class Read(NamedTuple):
    """Read at most `limit` messages of `queue` from offset `start` on, as the owner of `epoch`.

    Attributes:
        epoch: None for an observer: the read is not fenced, fences off nobody and does not arm the queue.
        mark: a message that the owner has read before. It must still be there, unless it was dropped; see
            `emq.storage.marks`. None if the owner has read none.
    """

    queue: str
    start: int
    limit: int
    epoch: int | None
    mark: Mark | None = None


class Batch(NamedTuple):
    """The result of a read.

    Attributes:
        offsets: ascending; a `range` if there were no holes.
        bodies: one for each offset.
        next: the offset to read from next. Offsets in [start, next) that are not in `offsets` are certainly holes.
        exhausted: True if the read reached the tail. The queue is then armed: the next put to it wakes the reader,
            unless the reader is an observer.
    """

    offsets: Sequence[int]
    bodies: Sequence[bytes]
    next: int
    exhausted: bool


class Bounds(NamedTuple):
    """The offsets of a queue: `head` is the first one not trimmed, `tail` the next one to assign. Empty if equal.

    Attributes:
        incarnation: a random number above 0 that the store gave the queue when it made the queue; 0 before that. A
            queue that is lost with its store and made again has another one. So whoever keeps an offset keeps the
            incarnation with it. A store restored from an older copy has the same incarnations; marks show that
            (`emq.storage.marks`).
    """

    head: int
    tail: int
    incarnation: int = 0


def new_incarnation() -> int:
    """Return a number for the queues that one call makes."""
    return 1 + secrets.randbits(31)


class Trim(NamedTuple):
    """Drop everything below offset `upto`; `epoch` None is for administration and is not fenced.

    Attributes:
        seal: True to refuse all further puts to the queue if nothing is left in it after the trim (atomically;
            otherwise it stays open). False to open the queue again. None to leave it as it is.
        layout: the lowest layout whose puts the queue still takes; it refuses lower ones with `QueueSealed`. Never
            lowered. None to leave it as it is.
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
        first_offset: the offset of the first message of an unused queue.
        max_queue_qps: operations a second that one queue can take, or None if the store names no such limit.

    A store whose seals hold for one instance only has an attribute `forgets_seals = True`. Its topics never sleep.
    """

    first_offset: int
    max_queue_qps: float | None

    async def put(
        self, puts: Sequence[Put], durability: Durability = Durability.ACCEPTED
    ) -> Sequence[Sequence[int] | errors.EMQError]:
        """Append messages; return the offsets of each put, or `TopicFull`, `QueueSealed` with the queue's layout,
        `StoreFull`.

        Idempotent only with ids: after `OutcomeUnknown` a repeat of any other put may store the messages twice (with
        the same message ids). A body that was left out has `REPEATED` instead of an offset.
        """

    async def get(self, queue: str, offset: int) -> bytes | None:
        """Return the body at one offset, or None for a hole, a trimmed offset or one beyond the tail. Does not arm."""

    async def read(
        self, reads: Sequence[Read], max_bytes: int = 8 << 20
    ) -> Sequence[Batch | errors.NotOwner | errors.MessagesLost | Failure]:
        """Read many queues, and arm each queue whose tail is reached, atomically with reaching it. Safe to repeat.

        The read stops early, with `exhausted` False, once it has gathered `max_bytes` of bodies over all queues. It
        returns at least one message if there is one. A new highest epoch fences off all lower ones from then on. A mark
        below the head proves nothing and is ignored.

        Returns:
            For each read: a `Batch`; `NotOwner` if the store has seen a higher epoch for the queue's group; for an
            owner, `MessagesLost` if the mark's message is not at its offset, or if `start` is beyond the tail (the
            queue is then not armed).
        """

    async def bounds(self, queues: Sequence[str]) -> Sequence[Bounds | Failure]:
        """Return head, tail and incarnation of each queue; an unused one has both ends at `first_offset`."""

    async def trim(self, trims: Sequence[Trim]) -> Sequence[bool | errors.NotOwner | errors.MessagesLost | Failure]:
        """Drop consumed messages. Safe to repeat; never moves the head back.

        Returns:
            For each trim: True if the queue is sealed now; `MessagesLost`, with nothing dropped, if the mark's message
            is not there any more.
        """
