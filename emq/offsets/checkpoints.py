"""Checkpoints in the database: the progress of each queue, and the epoch of the owner that saved it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
import sqlalchemy as sa

from emq.database import Database, statements, tables
from emq.database.database import read_value
from emq.database.known_stores import KnownStores
from emq.groups.offset_tracker import Note
from emq.storage.marks import Mark
from emq.topics import topic_changes
from emq.topics.model import Topic

T = TypeVar("T")

log = logging.getLogger(__name__)

_table = tables.checkpoints
_ranges = msgspec.json.Decoder(tuple[tuple[int, int], ...])
_notes = msgspec.json.Decoder(tuple[Note, ...])
_marks = msgspec.json.Decoder(tuple[Mark, ...])


class Checkpoint(NamedTuple):
    """Attributes:
    queue: the queue's name.
    epoch: the epoch under which the owner saved the checkpoint.
    watermark: everything below this offset is finished.
    finished: half-open ranges [start, end) that are finished above the watermark, ascending.
    marks: messages that were read from the queue, newest first; see `emq.storage.marks`. A save without marks keeps the
        stored marks.
    notes: for a topic with a retention: past watermarks with their times, oldest first.
    """

    queue: str
    epoch: int
    watermark: int
    finished: tuple[tuple[int, int], ...] = ()
    marks: tuple[Mark, ...] = ()
    notes: tuple[Note, ...] = ()

    @property
    def next_unread(self) -> int:
        """Return the first offset of which the checkpoint knows nothing."""
        return max(self.watermark, self.marks[0].offset + 1 if self.marks else 0)

    def unfinished(self, head: int, tail: int) -> int:
        """Return the number of messages from `head` to below `tail` that the checkpoint does not count as finished."""
        if self.watermark > tail:  # the store came back without its last messages; all that it has are unfinished
            return max(0, tail - head)
        start = max(head, self.watermark)
        finished = sum(max(0, min(end, tail) - max(begin, start)) for begin, end in self.finished)
        return max(0, tail - start - finished)

    def rewound(self, upto: int, marks: tuple[Mark, ...]) -> Checkpoint:
        """Return the part of the checkpoint that holds for a store that has lost everything from offset `upto` on.

        Args:
            upto: the first lost offset.
            marks: the marks that the store still confirms.
        """
        finished = tuple((start, min(end, upto)) for start, end in self.finished if start < upto)
        notes = tuple(note for note in self.notes if note.watermark <= upto)
        return self._replace(watermark=min(self.watermark, upto), finished=finished, marks=marks, notes=notes)


class Fenced(NamedTuple):
    """What a fence found behind it, in one transaction with it.

    Attributes:
        refused: queues for which a higher epoch is stored: another host owns them.
        saved: the checkpoints that there are, by queue.
        catalog: the version of the catalog.
    """

    refused: Sequence[str]
    saved: Mapping[str, Checkpoint]
    catalog: int


def newest(batch: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Return one checkpoint of each queue: the last one of the highest epoch."""
    found: dict[str, Checkpoint] = {}
    for checkpoint in batch:
        before = found.get(checkpoint.queue)
        if before is None or checkpoint.epoch >= before.epoch:
            found[checkpoint.queue] = checkpoint
    return list(found.values())


class CheckpointStore:
    """The checkpoints of one environment and store.

    Args:
        db: an open database with the catalog's tables; also an attribute, `database`.
        environment: "online" or "sandbox"; also an attribute.
        stores: finds the scope of the store, which keeps the checkpoints of several stores apart; also an attribute.
            None if the database never sees another store.
    """

    def __init__(self, db: Database, environment: str, stores: KnownStores | None = None) -> None:
        self.database = db
        self.environment = str(environment)
        self.stores = stores

    async def _scope(self, *, writes: bool = True) -> str:
        return self.environment if self.stores is None else await self.stores.scope(writes=writes)

    async def load_all(self) -> dict[str, Checkpoint]:
        """Return every checkpoint of the environment and store, by queue.

        Raises:
            DatabaseUnavailable: try again later.
        """
        t = _table.c
        query = sa.select(t.queue, t.epoch, t.watermark, t.finished, t.marks, t.notes)
        query = query.where(_table.c.environment == await self._scope(writes=False))
        return await self.database.run(lambda c: _checkpoints(c.execute(query)), read_only=True)

    async def load(self, queues: Sequence[str]) -> dict[str, Checkpoint]:
        """Return the checkpoints of these queues by name; queues without a checkpoint are left out.

        Raises:
            DatabaseUnavailable: try again later.
        """
        values = {"environment": await self._scope(writes=False), "queues": _json(list(queues))}

        def find(connection: sa.Connection) -> dict[str, Checkpoint]:
            return _checkpoints(connection.execute(statements.catalog(connection, "checkpoints_find"), values))

        return await self.database.run(find, read_only=True)

    async def fence(self, epochs: Mapping[str, int]) -> Fenced:
        """Make the database refuse saves of lower epochs for queues that have a checkpoint; return these checkpoints.

        Args:
            epochs: the epoch of each queue's new owner, by queue.

        Raises:
            DatabaseUnavailable: the call may or may not have had effect; repeat it later.
        """
        values = {"environment": await self._scope(), "rows": _json(list(epochs.items())), "queues": _json([*epochs])}

        def fence(connection: sa.Connection) -> Fenced:
            connection.execute(statements.catalog(connection, "checkpoints_fence"), values)
            refused = [*connection.execute(statements.catalog(connection, "checkpoints_refused"), values).scalars()]
            saved = _checkpoints(connection.execute(statements.catalog(connection, "checkpoints_find"), values))
            return Fenced(refused, saved, read_value(connection, self.environment, topic_changes.VERSION))

        return await self.database.run(fence) if epochs else Fenced((), {}, 0)

    async def save(self, batch: Sequence[Checkpoint]) -> list[str]:
        """Save checkpoints, all in one statement and one transaction; return the queues that were refused.

        A queue is refused if a higher epoch is stored: another host owns the queue now, and the caller must stop
        consuming it. A watermark never moves back; a late save with a lower one changes only the epoch. If a queue is
        in the batch twice (a host let go of it unsaved and acquired it again), the entry of the higher epoch counts,
        else the later one. Safe to repeat and to cancel: the batch is saved as a whole or not at all.

        Raises:
            DatabaseUnavailable: the batch may or may not be saved; repeat the call later.
        """
        if not batch:
            return []
        scope = await self._scope()

        def save(connection: sa.Connection) -> list[str]:
            unique = newest(batch)
            # The whole batch is one JSON parameter: the database unpacks it without holding the GIL.
            values = {"environment": scope, "rows": _json(unique)}
            accepted = connection.execute(statements.catalog(connection, "checkpoints_save"), values).rowcount
            if accepted == len(unique):
                return []
            return list(connection.execute(statements.catalog(connection, "checkpoints_refused"), values).scalars())

        return await self.database.run(save)

    async def rewind(self, batch: Sequence[Checkpoint]) -> list[str]:
        """Set watermarks outright, also back, because the store has lost messages; return the queues refused.

        Fenced by epochs, as `save` is. Safe to repeat.

        Raises:
            DatabaseUnavailable: the call may or may not have had effect; repeat it later.
        """
        values = {"environment": await self._scope(), "rows": _json(list(batch))}

        def rewind(connection: sa.Connection) -> list[str]:
            connection.execute(statements.catalog(connection, "checkpoints_rewind"), values)
            return list(connection.execute(statements.catalog(connection, "checkpoints_refused"), values).scalars())

        return await self.database.run(rewind) if batch else []

    async def reset(self, queue: str, watermark: int) -> Checkpoint:
        """Set a queue's watermark outright, back or forward, and forget the finished ranges above it.

        For administration only, and only while no host consumes the queue: an owner would go on from its own position
        and overwrite the watermark. The epoch is kept, so fencing is not weakened. Returns the new checkpoint.

        Args:
            queue: the queue's name.
            watermark: the offset to consume from next, 0 or more.

        Raises:
            ValueError: a negative watermark.
            DatabaseUnavailable: try again later.
        """
        if watermark < 0:
            raise ValueError(f"watermark {watermark} of queue {queue!r} must be 0 or more")
        values = {"environment": await self._scope(), "queue": queue, "watermark": watermark}

        def reset(connection: sa.Connection) -> Checkpoint:
            epoch = connection.execute(statements.catalog(connection, "checkpoints_reset"), values).scalar_one()
            return Checkpoint(queue, epoch, watermark)

        return await self.database.run(reset)

    async def drop(self, queues: Sequence[str]) -> int:
        """Forget the checkpoints of queues whose topic is gone; return their number. Safe to repeat.

        Raises:
            DatabaseUnavailable: try again later.
        """
        scope = await self._scope()
        return await self.database.run(lambda connection: _drop(connection, scope, queues))

    async def dropping(self) -> Callable[[sa.Connection, Sequence[Topic]], int]:
        """Return what forgets all checkpoints of topics within a transaction, as `drop` does."""
        scope = await self._scope()

        def drop(connection: sa.Connection, topics: Sequence[Topic]) -> int:
            return _drop(connection, scope, [queue for topic in topics for queue in topic.all_queues()])

        return drop


def _drop(connection: sa.Connection, scope: str, queues: Sequence[str]) -> int:
    values = {"environment": scope, "queues": _json(list(queues))}
    return int(connection.execute(statements.catalog(connection, "checkpoints_drop"), values).rowcount)


def _checkpoints(rows: Iterable[Any]) -> dict[str, Checkpoint]:
    none = ()
    return {
        queue: Checkpoint(
            queue,
            epoch,
            max(0, watermark),
            none if finished == "[]" else _read(_ranges, finished, queue),
            none if marks == "[]" else _read(_marks, marks, queue),
            none if notes == "[]" else _read(_notes, notes, queue),
        )
        for queue, epoch, watermark, finished, marks, notes in rows
    }


def _read(decoder: msgspec.json.Decoder[tuple[T, ...]], text: str, queue: str) -> tuple[T, ...]:
    """Return a column's decoded values; none if the column is damaged, so that some messages are delivered again."""
    try:
        return decoder.decode(text)
    except (msgspec.MsgspecError, ValueError) as exc:
        log.warning(
            "the checkpoint of queue %s is damaged (%s); messages that it counted as finished are delivered again",
            queue,
            exc,
        )
        return ()


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
