"""Reading queues in a stream: Spark's progress is an offset for each queue.

An observer like the batch reader: what a stream has read is not consumed, and its hosts trim behind their own
checkpoints. Let a topic that is streamed keep messages for a while (`retention_s`).

A micro-batch is a range of offsets of each queue, noted by Spark before it is read. A query that is started again
reads the batch that was under way once more, the same messages in the same partitions: at least once into any sink,
exactly once into one that takes a batch only once (files, or `foreachBatch` keyed with the batch's number).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from emq.app import App
from emq.storage.store import Bounds
from emq.topics.model import QueueName
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
"""Parts of Spark's offset: by queue, the offset to read next; and of the queues that its batch reads, the first offset.
So a batch follows from its end alone: where a query begins is not noted by Spark until its first batch is done."""

Progress = dict[str, dict[str, int]]


class MessagesStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Messages of the log topics that match; topics and groups that come up later are read from their head on."""

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
        """Of the queues that there are, and of those `known` whose groups were retired from a topic that shrank."""
        connection, app = self._connected()

        async def found() -> dict[str, Bounds]:
            topics = await app.catalog.list(self._options.topics)
            queues, names = dict.fromkeys(queues_of(topics, Wanted())), {topic.name for topic in topics}
            retired = (queue for queue in known if queue not in queues and QueueName.parse(queue).topic in names)
            return await bounds_of(app.store.log, [*queues, *retired])

        return connection.run(found())

    def _connected(self) -> tuple[Connection, App]:
        """Kept open: Spark asks for news many times a second."""
        if self._parts is None:
            with contextlib.ExitStack() as stack:
                self._parts = stack.enter_context(connected_app(self._options.settings))
                self._opened = stack.pop_all()
        return self._parts

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None, "_parts": None}


def advanced(start: Progress, bounds: dict[str, Bounds], most: int | None, *, lost_fails: bool) -> Progress:
    """The progress after the next batch: `start` itself if there is nothing to read.

    Args:
        bounds: of the queues that there are now, and of those retired since; others are forgotten.
        most: messages in the batch. Exceeded only where there are more queues with messages than that.
        lost_fails: raise `EMQError` where a queue begins behind the progress or ends before it; else go on at its head.
    """
    positions: dict[str, int] = {}
    for queue, (head, tail) in bounds.items():
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
    """What the batch that ends there reads."""
    return [Span(queue, first, end[ENDS][queue]) for queue, first in end[BEGINS].items()]
