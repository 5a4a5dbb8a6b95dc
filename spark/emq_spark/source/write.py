"""Publishes each row of a data frame; see `emq_spark.source.publication` for tasks that fail."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import secrets
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from emq.producer import Outgoing
from emq.runtime import errors
from emq.storage.message import label_bytes, random_name
from emq_spark.source.connection import Connection, connected_app
from emq_spark.source.notes import Notes, Piece
from emq_spark.source.options import Options
from emq_spark.source.publication import Publication, chunk_size

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

SLICE = 500
"""Rows of a record batch that become Python objects at once."""

CHUNK_BYTES = 16 << 20
"""Bytes of payload in one piece of work; the task prepares the next piece while one is on its way."""


@dataclasses.dataclass
class Written(WriterCommitMessage):
    """The message of a task that has ended."""

    run: str


class BatchWriter(DataSourceArrowWriter):
    """Publishes a data frame. Only a write with a name (`run`) may be repeated; others drop their notes."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._run = options.run or random_name()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        piece = Piece(self._run, 0, _task().partitionId())
        return publish(self._options, piece, f"{self._run}.{piece.part}", iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._forget()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._forget()

    def _forget(self) -> None:
        if not self._options.run:
            forget(self._options, self._run)


class StreamWriter(DataSourceStreamArrowWriter):
    """Publishes a stream. Spark repeats a micro-batch under the same query and number, also after a restart."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = _task()
        query, batch = (task.getLocalProperty(name) for name in ("sql.streaming.queryId", "streaming.sql.batchId"))
        if not query or batch is None:
            raise errors.EMQError("Spark does not name query and batch of this task; write a stream with writeStream")
        piece = Piece(query, int(batch), task.partitionId())
        return publish(self._options, piece, f"{query}.{batch}.{piece.part}", iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        # The batch's own notes stay: if Spark fails to note that the batch is committed, Spark repeats the batch.
        if runs := {message.run for message in messages if isinstance(message, Written)}:
            forget(self._options, runs.pop(), batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """The batch's notes stay for its repetition."""


def publish(options: Options, piece: Piece, prefix: str, batches: Iterator[pa.RecordBatch]) -> Written:
    """Publish a task's rows; prepare the next rows while some are on their way."""
    with connected_app(options.settings) as (connection, app):
        notes = connection.run(Notes.open(options.settings))
        try:
            publication = Publication(app, notes, piece, secrets.token_urlsafe(9), options.per_second)
            connection.run(publication.begin())
            pieces = chunks(rows_of(batches, options.topic, prefix), chunk_size(options.per_second))
            _publish_all(connection, publication, pieces)
            connection.run(publication.end())
            return Written(piece.run)
        finally:
            connection.run(notes.close())


def _publish_all(connection: Connection, publication: Publication, pieces: Iterator[list[Outgoing]]) -> None:
    under_way = None
    try:
        for rows in pieces:
            if under_way is not None:
                under_way.result()
            under_way = connection.start(publication.publish(rows))
        if under_way is not None:
            under_way.result()
    except Exception:
        if under_way is not None:
            concurrent.futures.wait([under_way])
        with contextlib.suppress(errors.EMQError):  # only the cause matters; if this fails, the next attempt waits
            connection.run(publication.let_go())
        raise


def forget(options: Options, run: str, below: int | None = None) -> None:
    """Drop the notes of a write, or those of a stream's batches below a number."""

    async def drop() -> None:
        notes = await Notes.open(options.settings)
        try:
            await notes.forget(run, below)
        finally:
            await notes.close()

    # The write is done, so a failure here must not look like a failed write. Old notes are dropped by their age.
    with contextlib.suppress(errors.EMQError):
        asyncio.run(drop())


def rows_of(batches: Iterator[pa.RecordBatch], topic: str, prefix: str) -> Iterator[Outgoing]:
    """Check the rows of record batches and give each an id.

    Args:
        topic: topic of rows without a topic of their own.
        prefix: begin of the ids, before the number of the row.

    Raises:
        InvalidMessage: a row has no payload, or no topic.
    """
    number = 0
    for batch in slices(batches):
        columns = {name: _values(name, batch.column(name)) for name in batch.schema.names}
        nothing = [None] * batch.num_rows
        names = ("topic", "payload", "id", "key", "priority", "headers", "at", "ttl_s")
        for row in zip(*(columns.get(name, nothing) for name in names), strict=True):
            to, payload, id_, key, priority, headers, at, ttl_s = row
            if payload is None or not (to or topic):
                missing = "payload" if payload is None else "topic"
                raise errors.InvalidMessage(f"row {number} of this task has no {missing}; fill it in, or leave it out")
            body = payload.encode() if isinstance(payload, str) else payload
            id_ = id_ or f"{prefix}.{number:x}"
            yield Outgoing(to or topic, body, id_, key, priority, headers, at=at, ttl_s=ttl_s)
            number += 1


def _values(name: str, column: pa.Array) -> Sequence[Any]:
    values: list[Any] = column.to_pylist()
    if name == "headers":
        return [dict(sorted((k, v) for k, v in pairs if v is not None)) if pairs else None for pairs in values]
    return values


def slices(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Cut the batches into small pieces, so that Python objects exist only for the rows needed next."""
    for batch in batches:
        for start in range(0, batch.num_rows, SLICE):
            yield batch.slice(start, SLICE)


def chunks(rows: Iterator[Outgoing], size: int) -> Iterator[list[Outgoing]]:
    """Yield rows in lists of `size` rows, or of fewer rows with `CHUNK_BYTES` of payload."""
    chunk: list[Outgoing] = []
    held = 0
    for row in rows:
        chunk.append(row)
        held += len(row.payload) + label_bytes(row.key, row.headers)
        if len(chunk) == size or held >= CHUNK_BYTES:
            yield chunk
            chunk, held = [], 0
    if chunk:
        yield chunk


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise errors.EMQError("this runs in a task of Spark only")
    return task
