"""Reads queues in a stream: Spark's progress is an offset for each queue.

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

from emq.app import App
from emq.storage.log_store import Bounds
from emq.storage.names import QueueName
from spark.source import schema as source_schema
from spark.source.connection import Connection, connected_app
from spark.source.filters import Wanted
from spark.source.messages import SpansPartition, bounds_of, check_untrimmed, record_batches
from spark.source.options import Options
from spark.source.rows import RowMaker
from spark.source.spans import Span, dealt, queues_of, shared_out

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql.types import StructType

ENDS, BEGINS = "ends", "begins"
"""Parts of Spark's offset: `ends` has, by queue, the next offset to read; `begins` has the first offset of the batch.

With both, the end of a batch defines the batch, because Spark notes the begin of a query only after its first batch.
"""

Progress = dict[str, dict[str, int]]


class MessagesStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The messages of matching log topics; new topics and groups are read from their head on."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._only_now = False
        self._target: dict[str, Bounds] | None = None
        self._opened: contextlib.ExitStack | None = None
        self._parts: tuple[Connection, App] | None = None

    def initialOffset(self) -> Progress:
        at_tail = self._options.start == "tail"
        return {ENDS: {q: b.tail if at_tail else b.head for q, b in self._bounds().items()}, BEGINS: {}}

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.messages_per_batch
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._only_now = True

    def latestOffset(self, start: Progress, limit: ReadLimit) -> Progress:
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        bounds = self._bounds(start[ENDS]) if self._target is None else self._target
        if self._only_now:
            self._target = bounds
        return advanced(start, bounds, most, lost_fails=self._options.trimmed == "fail")

    def reportLatestOffset(self) -> Progress:
        return {ENDS: {queue: bounds.tail for queue, bounds in self._bounds().items()}, BEGINS: {}}

    def partitions(self, start: Progress, end: Progress) -> Sequence[InputPartition]:
        spans = spans_of_batch(end) if start != end else []
        connection, app = self._connected()
        bounds = connection.run(bounds_of(app.store.log, [span.queue for span in spans]))
        if self._options.trimmed == "fail":
            check_untrimmed(spans, bounds)
        return [SpansPartition(part) for part in dealt(spans, self._options.messages_per_partition)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SpansPartition)
        rows = RowMaker(source_schema.arrow(self._schema))
        all_there = self._options.trimmed == "fail"
        return record_batches(self._options.settings, partition.spans, rows, all_there=all_there)

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


def advanced(start: Progress, bounds: dict[str, Bounds], most: int | None, *, lost_fails: bool) -> Progress:
    """Return the progress after the next batch: `start` itself if there is nothing to read.

    Args:
        bounds: bounds of the queues that exist now or were retired since; the progress forgets other queues.
        most: most messages in the batch; exceeded only if more queues than that have messages.
        lost_fails: raise `EMQError` if a queue's head is after the progress or its tail before it; if False, go on at
            the head.
    """
    positions: dict[str, int] = {}
    for queue, (head, tail, _) in bounds.items():
        position = start[ENDS].get(queue, head)
        if lost_fails and not head <= position <= tail:
            check_untrimmed([Span(queue, min(position, tail), max(position, head))], bounds)
        positions[queue] = position if position <= tail else head
    backlogs = [bounds[queue].tail - max(position, bounds[queue].head) for queue, position in positions.items()]
    if not any(backlogs):
        return start
    shares = backlogs if most is None else shared_out(most, backlogs)
    moving = {queue: share for queue, share in zip(positions, shares, strict=True) if share}
    ends = {queue: max(positions[queue], bounds[queue].head) + share for queue, share in moving.items()}
    return {ENDS: {**positions, **ends}, BEGINS: {queue: positions[queue] for queue in moving}}


def spans_of_batch(end: Progress) -> list[Span]:
    """Return the spans of the batch that ends at `end`."""
    return [Span(queue, first, end[ENDS][queue]) for queue, first in end[BEGINS].items()]
