"""Notes of a write's progress, so that a task that is tried again neither loses nor repeats rows.

A note is a row in EMQ's database, in a table of this package's own. For one partition of a write the note holds the
rows that are certainly published, the rows that the task was about to publish, and the ends of the queues by then.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self

import msgspec
import sqlalchemy as sa

from emq.database import Database, Schema
from emq.runtime import errors
from emq.runtime.settings import Settings
from emq.storage.durability import Durability

KEPT_DAYS = 30
"""Days for which notes of named writes and of streams are kept after their last change."""

NOBODY = ""
"""The name of the attempt in a note that no attempt holds."""

_metadata = sa.MetaData()

_writes = sa.Table(
    "emq_spark_writes",
    _metadata,
    sa.Column("environment", sa.Text, primary_key=True),
    sa.Column("run", sa.Text, primary_key=True),
    sa.Column("batch", sa.BigInteger, primary_key=True, comment="micro-batch of a stream; else 0"),
    sa.Column("part", sa.BigInteger, primary_key=True, comment="Spark partition"),
    sa.Column("attempt", sa.Text, nullable=False, comment="the task that may write the row"),
    sa.Column("done", sa.BigInteger, nullable=False, comment="rows [0, done) are published"),
    sa.Column("digest", sa.BigInteger, nullable=False, comment="of these rows"),
    sa.Column("begun", sa.BigInteger, nullable=False, comment="rows [done, begun) may be published"),
    sa.Column("tails", sa.Text, nullable=False, comment="JSON: where queues ended before the publish of these began"),
    sa.Column("updated_ms", sa.BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

SCHEMA = Schema(_metadata, "emq_spark_revision", "first", "emq_spark.source:migrations")

_CLAIM = sa.text(
    "INSERT INTO emq_spark_writes"
    " (environment, run, batch, part, attempt, done, digest, begun, tails, updated_ms)"
    " VALUES (:environment, :run, :batch, :part, :attempt, 0, 0, 0, '{}', :now_ms)"
    " ON CONFLICT (environment, run, batch, part) DO UPDATE SET attempt = excluded.attempt"
    " RETURNING done, digest, begun, tails"
)


class Piece(NamedTuple):
    """The part of a write that one task writes: a partition of a write, or of a stream's micro-batch."""

    run: str
    batch: int
    part: int


class Tail(NamedTuple):
    """The end of a queue, and the queue's incarnation; 0 if the store had not made the queue yet."""

    offset: int
    incarnation: int


class Note(NamedTuple):
    """The progress of a piece.

    Attributes:
        done: rows [0, done) are certainly published.
        digest: digest of these rows, see `digest_of`.
        begun: rows [done, begun) may be published.
        tails: ends of the queues concerned before the publish of rows [done, begun) began, and their incarnations.
    """

    done: int = 0
    digest: int = 0
    begun: int = 0
    tails: Mapping[str, Tail] = {}


class Notes:
    """The notes of one environment."""

    def __init__(self, database: Database, environment: str) -> None:
        self._database = database
        self._environment = str(environment)

    @classmethod
    async def open(cls, settings: Settings) -> Self:
        """Connect, and create the table if it is missing. Raises as `emq.database.Database.open`."""
        return cls(await Database.open(settings.database_url, SCHEMA), settings.environment)

    async def close(self) -> None:
        await self._database.close()

    async def claim(self, piece: Piece, attempt: str) -> tuple[Note, bool]:
        """Take over the piece's note, from an earlier attempt if there was one.

        Returns:
            The progress of the earlier attempt, and whether that attempt may still be at work, because it has neither
            ended nor let go.
        """
        mine = self._mine(piece)
        values = {**self._key(piece), "attempt": attempt, "now_ms": _now_ms()}

        def run(connection: sa.Connection) -> tuple[Note, bool]:
            holder = connection.execute(sa.select(_writes.c.attempt).where(*mine).with_for_update()).scalar()
            done, digest, begun, tails = connection.execute(_CLAIM, values).one()
            return Note(done, digest, begun, _tails(tails)), bool(holder)

        return await self._database.run(run, durability=Durability.FSYNCED)

    async def let_go(self, piece: Piece, attempt: str) -> None:
        """Release the note if it is still the attempt's own; the attempt must publish nothing more."""
        change = sa.update(_writes).where(*self._mine(piece), _writes.c.attempt == attempt).values(attempt=NOBODY)
        await self._database.run(lambda c: c.execute(change))

    async def save(self, piece: Piece, attempt: str, note: Note) -> None:
        """Replace the note; the new one is on disk when this returns.

        Raises:
            EMQError: a later attempt has taken the piece over; publish nothing more.
        """
        change = sa.update(_writes).where(*self._mine(piece), _writes.c.attempt == attempt)
        tails = msgspec.json.encode(note.tails).decode()
        change = change.values(done=note.done, digest=note.digest, begun=note.begun, tails=tails, updated_ms=_now_ms())
        changed = await self._database.run(lambda c: c.execute(change).rowcount, durability=Durability.FSYNCED)
        if not changed:
            raise errors.EMQError(
                f"partition {piece.part} of write {piece.run!r} is being published by a later attempt; this one ends"
            )

    async def forget(self, run: str, below: int | None = None) -> None:
        """Drop the notes of a write, or of a stream's batches below a number; also drop all notes that are too old."""
        mine = [_writes.c.environment == self._environment, _writes.c.run == run]
        if below is not None:
            mine.append(_writes.c.batch < below)
        old = _writes.c.updated_ms < _now_ms() - KEPT_DAYS * 86_400_000
        await self._database.run(lambda c: c.execute(sa.delete(_writes).where(sa.or_(sa.and_(*mine), old))))

    def _mine(self, piece: Piece) -> list[sa.ColumnElement[bool]]:
        return [_writes.c[name] == value for name, value in self._key(piece).items()]

    def _key(self, piece: Piece) -> dict[str, Any]:
        return {"environment": self._environment, **piece._asdict()}


def _tails(text: str) -> dict[str, Tail]:
    try:
        return msgspec.json.decode(text, type=dict[str, Tail])
    except msgspec.MsgspecError as exc:
        raise errors.EMQError(
            f"emq_spark_writes has a note in another form than this version of EMQ writes ({exc}); nothing was "
            "published, write under another run"
        ) from exc


def digest_of(contents: Iterable[bytes], before: int = 0) -> int:
    """Return the digest of rows by their contents; `before` is the digest of the rows ahead of them."""
    for content in contents:
        before = zlib.crc32(content, before)
    return before


def _now_ms() -> int:
    return int(time.time() * 1000)
