"""`df.write.format("emq")` and `df.writeStream`: every row is published once, whatever becomes of the tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from emq_data import Data
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as F

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def save(frame: DataFrame, data: Data, **options: object) -> None:
    writer = frame.write.format("emq").mode("append").options(**data.options)
    writer.options(**{name: str(value) for name, value in options.items()}).save()


def numbers(spark: SparkSession, count: int, partitions: int = 3, width: int = 0) -> DataFrame:
    """The numbers as text, with so many blanks in front."""
    text = F.concat(F.repeat(F.lit(" "), width), F.col("id").cast("string"))
    return spark.range(0, count, 1, partitions).select(text.alias("payload"))


def payloads(data: Data, topic: str) -> Counter[int]:
    return Counter(int(m.payload) for m in data.messages(topic))


@pytest.mark.parametrize("where", ["data", "redis_data"])
def test_every_row_is_published_with_all_that_it_carries(
    spark: SparkSession, request: pytest.FixtureRequest, where: str
) -> None:
    data: Data = request.getfixturevalue(where)
    for topic in ("write.a", "write.b"):
        data.create(topic, 150)
    frame = numbers(spark, 2_000).selectExpr(
        "cast(payload as binary) payload",
        "if(payload % 2 = 0, 'write.a', null) topic",
        "concat('k', payload % 5) key",
        "if(payload % 3 = 0, 'high', null) priority",
        "if(payload % 2 = 0, map('n', payload), null) headers",
    )
    save(frame, data, topic="write.b")
    a, b = data.messages("write.a"), data.messages("write.b")
    assert sorted(int(m.payload) for m in a) == [*range(0, 2_000, 2)]
    assert sorted(int(m.payload) for m in b) == [*range(1, 2_000, 2)]
    assert all(m.headers == {"n": m.payload.decode()} for m in a)
    assert all(m.key == f"k{int(m.payload) % 5}" for m in a + b)
    assert len({m.id for m in a + b}) == 2_000


def test_no_id_of_a_row_looks_like_an_option_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    from emq.runtime.settings import Settings
    from emq_spark.source.options import Options
    from emq_spark.source.write import BatchWriter

    monkeypatch.setattr("secrets.token_urlsafe", lambda _: "-0RiBtilQUkh")
    assert BatchWriter(Options(Settings()))._run == "A0RiBtilQUkh"


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Wide rows reach a writer by the hundred, not only when a task has ten thousand."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(name, "100")
    yield
    spark.conf.unset(name)


def counter(data: Data) -> Callable[[], int]:
    """A function for workers: it waits until something is published, and tells how much."""
    store = data.options["store"]

    def published() -> int:
        import asyncio
        import time

        from emq.app import App

        async def count() -> int:
            async with App(store) as app:
                return sum(lag.unfinished for lag in await app.admin.lag(await app.catalog.list()))

        deadline = time.monotonic() + 30
        while not (found := asyncio.run(count())) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

    return published


def test_a_task_that_is_tried_again_publishes_nothing_twice(
    spark: SparkSession, data: Data, small_batches: None, tmp_path: Path
) -> None:
    published = counter(data)

    def fail_twice(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Let some rows through, wait until some are published, and die: the process first, then the task."""
        import os

        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        for number, batch in enumerate(batches):
            if number == 5 + task.attemptNumber() and task.attemptNumber() < 2:
                (tmp_path / f"died-{task.partitionId()}-{task.attemptNumber()}").write_text(str(published()))
                if task.attemptNumber():
                    raise RuntimeError("planted failure")
                os._exit(1)
            yield batch

    data.create("t", 150)
    frame = numbers(spark, 1_600, 2, width=1_000).mapInArrow(fail_twice, "payload string")
    save(frame, data, topic="t", per_second=300)
    deaths = {file.name: int(file.read_text()) for file in tmp_path.glob("died-*")}
    assert len(deaths) == 4
    assert all(0 < published < 1_600 for published in deaths.values()), deaths
    assert payloads(data, "t") == Counter(range(1_600))


def test_a_write_that_has_a_name_may_be_repeated(spark: SparkSession, data: Data, small_batches: None) -> None:
    data.create("t", 150)
    published = counter(data)

    def stop_half_way(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == 4:
                published()
                raise RuntimeError("planted failure")
            yield batch

    half = numbers(spark, 1_000, 2, width=1_000).mapInArrow(stop_half_way, "payload string")
    with pytest.raises(PySparkException, match="planted failure"):
        save(half, data, topic="t", run="n", per_second=200)
    assert 0 < len(data.messages("t")) < 1_000
    for _ in range(2):
        save(numbers(spark, 1_000, 2, width=1_000), data, topic="t", run="n", per_second=20_000)
        assert payloads(data, "t") == Counter(range(1_000))


def test_a_stream_is_published_once_through_crashes_between_publish_and_commit(
    spark: SparkSession, data: Data, tmp_path: Path
) -> None:
    for topic in ("from", "to"):
        data.create(topic, 150)
    data.publish("from", range(100))
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        read = spark.readStream.format("emq").options(**data.options, topics="from", columns="payload")
        writer = read.load().writeStream.format("emq").options(**data.options, topic="to")
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(120)

    run()
    data.publish("from", range(100, 150))
    run()
    last = max(int(file.name) for file in (checkpoint / "commits").iterdir() if file.name.isdecimal())
    # As if Spark had died after the sink's commit, before it noted it: it repeats the batch.
    for file in (f"{last}", f".{last}.crc"):
        (checkpoint / "commits" / file).unlink(missing_ok=True)
    run()
    assert payloads(data, "to") == Counter(range(150))


def test_what_cannot_be_published_is_refused_in_a_line(spark: SparkSession, data: Data) -> None:
    data.create("t", 150)
    frame = numbers(spark, 10, 1)
    with pytest.raises(AnalysisException, match="neither a column 'topic' nor the option topic"):
        save(frame, data)
    with pytest.raises(AnalysisException, match="mode 'overwrite' is not for queues"):
        frame.write.format("emq").mode("overwrite").options(**data.options, topic="t").save()
    with pytest.raises(PySparkException, match="no topic 'u' in online"):
        save(frame, data, topic="u")
    with pytest.raises(PySparkException, match="row 0 of this task has no payload"):
        save(frame.selectExpr("cast(null as string) payload"), data, topic="t")
    assert data.messages("t") == []
