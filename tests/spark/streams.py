"""Reads and streams of offsets, without a session of Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from emq_data import Data
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StructField, StructType

from emq_spark.source import options as so
from emq_spark.source.messages import MessagesReader
from emq_spark.source.stream import MessagesStream, Stored

OFFSET = StructType([StructField("offset", LongType())])


def reader(data: Data, **options: str) -> MessagesReader:
    return MessagesReader(so.parse({**data.options, **options}, so.READ), OFFSET)


@contextlib.contextmanager
def opened(data: Data, **options: str) -> Iterator[MessagesStream]:
    """Open a stream as a driver does that is a process of its own, as after a restart."""
    stream = MessagesStream(so.parse({**data.options, **options}, so.STREAM), OFFSET)
    try:
        yield stream
    finally:
        stream.stop()


def next_batch(stream: MessagesStream, at: Stored | None = None) -> Stored:
    """Return the end of the batch that follows; the first one if nothing was read yet."""
    return stream.latestOffset(stream.initialOffset() if at is None else at, ReadAllAvailable())


def offsets_of(of: MessagesReader | MessagesStream, parts: Sequence[InputPartition]) -> list[int]:
    """Return the offsets that tasks read."""
    spans = [part for part in parts if part.value is not None]
    return [n for part in spans for batch in of.read(part) for n in batch.column("offset").to_pylist()]
