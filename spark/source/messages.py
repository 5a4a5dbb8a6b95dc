"""Reads queues: the driver plans the read, and each task carries out a part of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from emq import errors
from emq.app import App
from emq.settings import Settings
from emq.storage.answers import Failure, served
from emq.storage.log_store import Batch, Bounds, LogStore
from emq.topics.model import Topic
from spark.source import schema as source_schema
from spark.source.connection import Connection, ask, connected_store
from spark.source.filters import Wanted
from spark.source.options import Options
from spark.source.rows import RowMaker
from spark.source.spans import CALL_BYTES, Found, Reading, Span, dealt, queues_of, spans_of

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql.types import StructType

BOUNDS_CHUNK = 3_000
"""Most queues in one call for bounds."""


class SpansPartition(InputPartition):
    """The spans that one task reads."""

    def __init__(self, spans: tuple[Span, ...]) -> None:
        super().__init__(spans)
        self.spans = spans


class MessagesReader(DataSourceReader):
    """Reads the messages that are in the queues of log topics when the data frame is first used.

    Messages that are trimmed before a task reads them are left out. The reader only observes: it claims, fences and
    arms nothing.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._wanted = Wanted()

    def partitions(self) -> Sequence[InputPartition]:
        spans = ask(self._options.settings, self._spans)
        return [SpansPartition(part) for part in dealt(spans, self._options.messages_per_partition)]

    async def _spans(self, app: App) -> list[Span]:
        topics = await topics_of(app, self._options.topics)
        bounds = await bounds_of(app.store.log, queues_of(topics, self._wanted))
        return list(spans_of(bounds, self._wanted))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SpansPartition):  # Spark makes an empty partition if there are none
            return iter(())
        rows = RowMaker(source_schema.arrow(self._schema), self._wanted.range("published"))
        return record_batches(self._options.settings, partition.spans, rows)


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
    settings: Settings, spans: Sequence[Span], rows: RowMaker, *, all_there: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield the messages in the spans, a record batch for each call to the store; read ahead by one call.

    Args:
        all_there: raise `EMQError` if messages were trimmed; if False, leave them out.
    """
    with connected_store(settings) as (connection, store):
        for found in _found(connection, store.log, spans):
            if all_there and (short := [span for span, offsets, _ in found if len(offsets) < span.end - span.start]):
                check_untrimmed(short, connection.run(bounds_of(store.log, [span.queue for span in short])))
            batch = rows.batch(found)
            if batch.num_rows:
                yield batch


def check_untrimmed(spans: Iterable[Span], bounds: Mapping[str, Bounds]) -> None:
    """Raise `EMQError`, with the remedy, if the store has trimmed or lost messages of one of the spans."""
    for queue, start, end in spans:
        head, tail, _ = bounds[queue]
        if head > start or tail < end:
            gone = f"{start} to {min(head, end) - 1} were trimmed" if head > start else f"{tail} to {end - 1} are lost"
            raise errors.EMQError(
                f"queue {queue!r}: offsets {gone} before they were read; raise the topic's retention_s so that this "
                "does not happen again, and set the option trimmed to 'skip' to go on behind them"
            )


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
