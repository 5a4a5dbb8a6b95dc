"""Reads queues in a stream: Spark's progress is a position in each queue, see `emq_spark.source.progress`.

A stream is an observer like the batch reader: reading consumes nothing, and hosts trim behind their own checkpoints.
Let a streamed topic keep its messages for a while (`retention_s`).

A micro-batch is a range of offsets of each queue, which Spark notes before it reads the batch. A restarted query reads
the interrupted batch again, with the same messages in the same partitions. So each message reaches any sink at least
once. A sink that takes each batch only once (files, or `foreachBatch` keyed by the batch's number) gets it exactly
once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from emq import App
from emq.storage.log_store import Bounds
from emq.storage.names import QueueName
from emq_spark.source import places
from emq_spark.source import schema as source_schema
from emq_spark.source.connection import Connection, connected_app
from emq_spark.source.filters import Wanted
from emq_spark.source.messages import bounds_of, check_there, record_batches, replaced
from emq_spark.source.options import Options
from emq_spark.source.progress import Position, Progress, advanced, digests, restored
from emq_spark.source.rows import RowMaker
from emq_spark.source.spans import dealt, queues_of

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql.types import StructType

Stored = dict[str, Any]
"""A packed `Progress`."""


class MessagesStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The messages of matching log topics; new topics and groups are read from their head on."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._only_now = False
        self._lost_fails = options.trimmed == "fail"
        self._target: dict[str, Bounds] | None = None
        self._planned: Progress | None = None
        self._opened: contextlib.ExitStack | None = None
        self._parts: tuple[Connection, App] | None = None

    def initialOffset(self) -> Stored:
        bounds = self._bounds()
        connection, app = self._connected()

        async def found() -> Progress:
            offsets = await places.offsets_at(app.store.log, self._options.start, bounds)
            behind = {queue: offset - 1 for queue, offset in offsets.items() if offset > bounds[queue].head}
            last = await digests(app.store.log, behind)
            return Progress(
                {q: Position(offset, bounds[q].incarnation, last.get(q, "")) for q, offset in offsets.items()}, {}
            )

        return connection.run(found()).packed()

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.messages_per_batch
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._only_now = True

    def latestOffset(self, start: Stored, limit: ReadLimit) -> Stored:
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        at = Progress.unpacked(start)
        bounds = self._bounds(at.ends) if self._target is None else self._target
        if self._only_now:
            self._target = bounds
        connection, app = self._connected()

        async def found() -> Progress:
            news = {q: position for q, position in at.ends.items() if q in bounds and position.offset < bounds[q].tail}
            others = await restored(app.store.log, news, bounds)
            end = advanced(at, bounds, most, lost_fails=self._lost_fails, others=others)
            if end is at:
                return at
            return end.noted(await digests(app.store.log, {q: end.ends[q].offset - 1 for q in end.begins}))

        self._planned = connection.run(found())
        return start if self._planned is at else self._planned.packed()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return how far the stream is behind, for the query's progress; None while it has planned no batch."""
        if self._planned is None:
            return None
        return {"lag": self._planned.lag(self._bounds(self._planned.ends))}

    def partitions(self, start: Stored, end: Stored) -> Sequence[InputPartition]:
        progress = Progress.unpacked(end)
        spans = progress.spans() if start != end else []
        connection, app = self._connected()
        bounds = connection.run(bounds_of(app.store.log, [span.queue for span in spans]))
        if self._lost_fails:
            last = {span.queue: progress.ends[span.queue] for span in spans}
            check_there(spans, bounds, connection.run(restored(app.store.log, last, bounds)))
        else:  # a queue that was made again is read from its head on by the next batch
            gone = {*replaced(spans, bounds)}
            spans = [span for span in spans if span not in gone]
        return [InputPartition(part) for part in dealt(spans, self._options.messages_per_partition)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        rows, lost = RowMaker(source_schema.arrow(self._schema)), self._lost_fails
        return record_batches(self._options.settings, partition.value, rows, all_there=lost, same_queues=lost)

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = self._parts = None

    def _bounds(self, known: Iterable[str] = ()) -> dict[str, Bounds]:
        """Return the bounds of all queues, and of `known` queues whose groups were retired when a topic shrank."""
        connection, app = self._connected()

        async def found() -> dict[str, Bounds]:
            topics = await app.catalog.list(self._options.topics)
            queues, names = dict.fromkeys(queues_of(topics, Wanted())), {topic.name for topic in topics}
            retired = (queue for queue in known if queue not in queues and QueueName.parse(queue).topic in names)
            return await bounds_of(app.store.log, [*queues, *retired])

        return connection.run(found())

    def _connected(self) -> tuple[Connection, App]:
        """Return a connection that stays open, because Spark asks for new messages many times a second."""
        if self._parts is None:
            with contextlib.ExitStack() as stack:
                self._parts = stack.enter_context(connected_app(self._options.settings))
                self._opened = stack.pop_all()
        return self._parts

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None, "_parts": None}
