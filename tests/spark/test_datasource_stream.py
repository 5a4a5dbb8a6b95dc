"""`spark.readStream.format("emq")`: every message reaches the sink, once if the sink takes a batch once."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from emq_data import Data
from pyspark.errors import StreamingQueryException
from pyspark.sql.types import StructType

from emq.runtime import errors
from emq_spark.source.datasource import EMQDataSource
from emq_spark.source.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery


class Crash(Exception):
    """What a sink raises in the middle of a batch."""


class Stream:
    """Queries over the same topics with the same checkpoint, one after the other."""

    def __init__(self, spark: SparkSession, data: Data, directory: Path) -> None:
        self._spark = spark
        self._data = data
        self.checkpoint = directory / "checkpoint"
        self.files = directory / "files"

    def frame(self, **options: object) -> DataFrame:
        reader = self._spark.readStream.format("emq").options(**self._data.options)
        return reader.options(**{name: str(value) for name, value in options.items()}).load()

    def _run(self, writer: DataStreamWriter) -> StreamingQuery:
        """Read all there is, and stop."""
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        try:
            query.awaitTermination(120)
            assert not query.isActive
        finally:
            query.stop()
        return query

    def to_files(self, **options: object) -> StreamingQuery:
        frame = self.frame(columns="topic,offset,payload", **options)
        return self._run(frame.writeStream.format("parquet").option("path", str(self.files)))

    def to_function(self, sink: Callable[[DataFrame, int], None], **options: object) -> StreamingQuery:
        return self._run(self.frame(columns="topic,payload", **options).writeStream.foreachBatch(sink))

    def written(self) -> Counter[tuple[str, int]]:
        rows = self._spark.read.parquet(str(self.files)).collect()
        return Counter((r.topic, int(r.payload)) for r in rows)


@pytest.fixture
def stream(spark: SparkSession, data: Data, tmp_path: Path) -> Stream:
    return Stream(spark, data, tmp_path)


def test_a_stream_goes_on_where_it_was_and_takes_up_new_topics(stream: Stream, data: Data) -> None:
    data.create("a")
    data.publish("a", range(100))
    query = stream.to_files(topics="?", messages_per_batch=40)
    sizes = [progress["numInputRows"] for progress in query.recentProgress]
    assert (sum(sizes), max(sizes) <= 40) == (100, True)
    data.publish("a", range(100, 130), priority="high")
    data.create("b", 50)
    data.publish("b", range(20))
    query = stream.to_files(topics="?")
    [source] = query.lastProgress["sources"]
    assert Progress.unpacked(json.loads(source["endOffset"])).ends["b/0/mid"].offset == 21
    assert json.loads(source["latestOffset"])["lag"] == {"messages": 0, "queues": 0}
    assert stream.written() == Counter([("a", n) for n in range(130)] + [("b", n) for n in range(20)])


def test_a_batch_that_was_under_way_is_repeated_with_the_same_messages(stream: Stream, data: Data) -> None:
    data.create("a", 200)
    data.publish("a", range(100))
    seen: list[tuple[int, set[int]]] = []

    def sink(fails: bool) -> Callable[[DataFrame, int], None]:
        def take(frame: DataFrame, batch: int) -> None:
            seen.append((batch, {int(r.payload) for r in frame.collect()}))
            if fails and batch == 1:
                raise Crash

        return take

    with pytest.raises(StreamingQueryException):
        stream.to_function(sink(fails=True), messages_per_batch=40)
    data.publish("a", range(100, 150))  # what comes meanwhile must not change the batch that is repeated
    stream.to_function(sink(fails=False), messages_per_batch=40)
    assert [batch for batch, _ in seen][:3] == [0, 1, 1]
    assert seen[1] == seen[2]
    once = dict(seen)
    assert Counter(n for batch in once.values() for n in batch) == Counter(range(150))


@pytest.mark.parametrize("start", ["head", "tail"])
def test_the_first_batch_is_repeated_as_it_was_also_where_the_query_began_at_the_tail(
    stream: Stream, data: Data, start: str
) -> None:
    data.create("a")
    data.publish("a", range(10))
    seen: list[set[int]] = []
    deadline = time.monotonic() + 60

    def fail_once(frame: DataFrame, batch: int) -> None:
        rows = frame.collect()
        if not rows:
            return
        seen.append({int(r.payload) for r in rows})
        if len(seen) == 1:
            data.publish("a", range(20, 30))
            raise Crash

    frame = stream.frame(columns="payload", start=start)
    writer = frame.writeStream.foreachBatch(fail_once).option("checkpointLocation", str(stream.checkpoint))
    query = writer.trigger(processingTime="200 milliseconds").start()
    try:
        while start == "tail" and "Waiting" not in query.status["message"]:
            assert time.monotonic() < deadline, query.status
            time.sleep(0.05)
        data.publish("a", range(10, 20))
        with pytest.raises(StreamingQueryException):
            query.awaitTermination(60)
    finally:
        query.stop()
    stream.to_function(fail_once, start=start)
    assert seen[0] == seen[1]
    assert set().union(*seen) == set(range(0 if start == "head" else 10, 30))


def test_what_cannot_be_streamed_says_so(data: Data) -> None:
    for options, text in (
        ({"what": "lag"}, "what 'lag' cannot be streamed"),
        ({"pushdown": "true"}, "'pushdown' is for read, not for readStream"),
    ):
        with pytest.raises(errors.InvalidSettings, match=text):
            EMQDataSource({**data.options, **options}).streamReader(StructType())
