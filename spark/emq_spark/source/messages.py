"""Reads queues: the driver plans the read, and each task carries out a part of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from emq import App
from emq.runtime import errors
from emq.runtime.settings import Settings
from emq.storage.answers import Failure, served
from emq.storage.log_store import Batch, Bounds, LogStore
from emq.topics.model import Topic
from emq_spark.source import places
from emq_spark.source import schema as source_schema
from emq_spark.source.connection import Connection, ask, connected_store
from emq_spark.source.filters import Wanted
from emq_spark.source.options import Options
from emq_spark.source.progress import failure, problem
from emq_spark.source.rows import RowMaker
from emq_spark.source.spans import CALL_BYTES, Found, Reading, Span, dealt, queues_of, spans_of

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql.types import StructType

BOUNDS_CHUNK = 3_000
"""Most queues in one call for bounds."""


class MessagesReader(DataSourceReader):
    """Reads the messages that are in the queues of log topics when the data frame is first used.

    A partition's value is the spans that one task reads.

    Messages that are trimmed before a task reads them are left out. The reader only observes: it claims, fences and
    arms nothing.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._wanted = Wanted()

    def partitions(self) -> Sequence[InputPartition]:
        spans = ask(self._options.settings, self._spans)
        return [InputPartition(part) for part in dealt(spans, self._options.messages_per_partition)]

    async def _spans(self, app: App) -> list[Span]:
        topics = await topics_of(app, self._options.topics)
        bounds = await bounds_of(app.store.log, queues_of(topics, self._wanted))
        every = {*queues_of(topics, Wanted())}
        starts = await places.offsets_at(app.store.log, self._options.start, bounds, every)
        ends = await places.offsets_at(app.store.log, self._options.end, bounds, every)
        between = {
            queue: b._replace(head=max(b.head, starts[queue]), tail=min(b.tail, ends[queue]))
            for queue, b in bounds.items()
        }
        return list(spans_of(between, self._wanted))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:  # Spark makes an empty partition if there are none
            return iter(())
        rows = RowMaker(source_schema.arrow(self._schema), self._wanted.range("published"))
        return record_batches(self._options.settings, partition.value, rows)


class FilteringMessagesReader(MessagesReader):
    """Reads only the messages for which a query's filters ask, with the option `pushdown`.

    Filters on topic, group, priority and offset limit the read itself. A filter on `published` limits the rows that
    Spark gets.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._wanted.take(filters, ("topic", "priority", "group"), ("group", "offset", "published"))


async def topics_of(app: App, pattern: str) -> list[Topic]:
    """Return the matching topics; raise `UnknownTopic` if a plain name does not exist."""
    found = await app.catalog.list(pattern)
    if not found and not set("*?[") & set(pattern):
        return [await app.catalog.get(pattern)]
    return found


async def bounds_of(log: LogStore, queues: Sequence[str]) -> dict[str, Bounds]:
    found: dict[str, Bounds] = {}
    for start in range(0, len(queues), BOUNDS_CHUNK):
        chunk = queues[start : start + BOUNDS_CHUNK]
        found.update(zip(chunk, served(await log.bounds(chunk)), strict=True))
    return found


def record_batches(
    settings: Settings, spans: Sequence[Span], rows: RowMaker, *, all_there: bool = False, same_queues: bool = True
) -> Iterator[pa.RecordBatch]:
    """Yield the messages in the spans, a record batch for each call to the store; read ahead by one call.

    Args:
        all_there: raise `EMQError` if messages were trimmed or lost; if False, leave them out.
        same_queues: raise `EMQError` at the end if a queue was made again since the read was planned.
    """
    with connected_store(settings) as (connection, store):
        for found in _found(connection, store.log, spans):
            if all_there and (short := [span for span, offsets, _ in found if len(offsets) < span.end - span.start]):
                check_there(short, connection.run(bounds_of(store.log, [span.queue for span in short])))
            batch = rows.batch(found)
            if batch.num_rows:
                yield batch
        if same_queues:  # a queue that has its incarnation after the read had it all along
            bounds = connection.run(bounds_of(store.log, sorted({span.queue for span in spans})))
            check_there(replaced(spans, bounds), bounds)


def replaced(spans: Iterable[Span], bounds: Mapping[str, Bounds]) -> list[Span]:
    """Return the spans of queues that were made again since."""
    return [span for span in spans if span.incarnation not in (0, bounds[span.queue].incarnation)]


def check_there(spans: Iterable[Span], bounds: Mapping[str, Bounds], others: Collection[str] = ()) -> None:
    """Raise `EMQError`, with the remedy, if messages of one of the spans are not in the store any more.

    Args:
        others: queues that have other messages than when the spans were planned.
    """
    found = (problem(span, bounds[span.queue], restored=span.queue in others) for span in spans)
    if wrong := [text for text in found if text is not None]:
        raise failure(wrong)


def _found(connection: Connection, log: LogStore, spans: Sequence[Span]) -> Iterator[list[Found]]:
    reading = Reading(spans)

    def call() -> Future[Sequence[Batch | errors.NotOwner | errors.MessagesLost | Failure]] | None:
        reads = reading.reads()
        return connection.start(log.read(reads, CALL_BYTES)) if reads else None

    under_way = call()
    while under_way is not None:
        found = reading.take(served(under_way.result()))
        under_way = call()
        yield found
