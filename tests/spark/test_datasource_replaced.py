"""Streams over a store that was emptied or restored and has grown past what was read: nothing is passed over."""

from __future__ import annotations

from pathlib import Path

import pytest
from emq_data import Data
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StructField, StructType
from replaced_store import Replaced

from emq.runtime import errors
from emq_spark.source import options as so
from emq_spark.source.messages import MessagesReader, SpansPartition
from emq_spark.source.progress import Progress
from emq_spark.source.stream import MessagesStream, Stored

OFFSET = StructType([StructField("offset", LongType())])


def opened(data: Data, **options: str) -> MessagesStream:
    return MessagesStream(so.parse({**data.options, **options}, so.STREAM), OFFSET)


def planned(data: Data, at: Stored | None, **options: str) -> Stored:
    """Return the end of the next batch; each driver is a process of its own, as after a restart."""
    stream = opened(data, **options)
    try:
        return stream.latestOffset(stream.initialOffset() if at is None else at, ReadAllAvailable())
    finally:
        stream.stop()


def read(data: Data, start: Stored, end: Stored, **options: str) -> list[int]:
    stream = opened(data, **options)
    try:
        parts = [part for part in stream.partitions(start, end) if isinstance(part, SpansPartition)]
        return [n for part in parts for batch in stream.read(part) for n in batch.column("offset").to_pylist()]
    finally:
        stream.stop()


def test_a_stream_over_an_emptied_store_fails_by_name_or_reads_it_from_its_head(store: Replaced) -> None:
    store.data.create("t", 50)
    store.data.publish("t", range(100))
    end = planned(store.data, None)
    store.lose()
    store.data.publish("t", range(110))
    with pytest.raises(errors.EMQError, match=r"queue 't/0/mid' was lost with its store and made again since it"):
        planned(store.data, end)
    assert read(store.data, end, planned(store.data, end, trimmed="skip"), trimmed="skip") == [*range(1, 111)]


def test_a_stream_over_a_restored_store_fails_by_name_or_reads_it_from_its_head(store: Replaced) -> None:
    store.data.create("t", 50)
    store.data.publish("t", range(60))
    restore = store.keep()
    store.data.publish("t", range(60, 100))
    end = planned(store.data, None)
    restore()
    store.data.publish("t", range(50))  # offsets 61 to 110: those to 100 were never read
    with pytest.raises(
        errors.EMQError, match=r"queue 't/0/mid' has another message at offset 100 than before: .*store"
    ):
        planned(store.data, end)
    assert read(store.data, end, planned(store.data, end, trimmed="skip"), trimmed="skip") == [*range(1, 111)]


def test_a_stream_that_began_at_the_tail_notices_it_as_well(store: Replaced) -> None:
    store.data.create("t", 50)
    store.data.publish("t", range(10))
    restore = store.keep()
    store.data.publish("t", range(10, 20))
    stream = opened(store.data, start="tail")
    begin = stream.initialOffset()
    stream.stop()
    restore()
    store.data.publish("t", range(20))
    with pytest.raises(errors.EMQError, match="has another message at offset 20 than before"):
        planned(store.data, begin)


def test_a_topic_that_was_deleted_and_made_again_is_read_whole(store: Replaced) -> None:
    store.data.create("t", 50)
    store.data.publish("t", range(20))
    end = planned(store.data, None)
    store.data.do(lambda app: app.admin.delete("t", force=True))
    store.data.create("t", 50)
    store.data.publish("t", range(30))
    seen = read(store.data, end, planned(store.data, end))
    assert len(seen) == 30


@pytest.mark.parametrize("what", ["lose", "restore"])
def test_a_batch_that_was_planned_before_is_not_read_from_another_store(store: Replaced, what: str) -> None:
    store.data.create("t", 50)
    store.data.publish("t", range(10))
    restore = store.keep()
    store.data.publish("t", range(10, 20))
    stream = opened(store.data)
    begin = stream.initialOffset()
    stream.stop()
    end = planned(store.data, begin)
    (store.lose if what == "lose" else restore)()
    store.data.publish("t", range(40))
    with pytest.raises(errors.EMQError, match="made again" if what == "lose" else "another message at offset 20"):
        read(store.data, begin, end)
    if what == "lose":
        assert read(store.data, begin, end, trimmed="skip") == []
        assert read(store.data, end, planned(store.data, end, trimmed="skip"), trimmed="skip") == [*range(1, 41)]


def test_a_task_whose_queue_was_made_again_after_it_was_planned_fails(store: Replaced) -> None:
    store.data.create("t", 50)
    store.data.publish("t", range(20))
    stream = opened(store.data)
    begin = stream.initialOffset()
    end = stream.latestOffset(begin, ReadAllAvailable())
    [of_stream] = stream.partitions(begin, end)
    reader = MessagesReader(so.parse(store.data.options, so.READ), OFFSET)
    [of_read] = reader.partitions()
    store.lose()
    store.data.publish("t", range(30))
    for part, of in ((of_stream, stream), (of_read, reader)):
        assert isinstance(part, SpansPartition)
        with pytest.raises(errors.EMQError, match="queue 't/0/mid' was lost with its store and made again"):
            list(of.read(part))
    stream.stop()


def test_a_small_progress_stands_for_many_queues(tmp_path: Path) -> None:
    """Spark shows it with each failure of the query; bare it had 29,000 characters."""
    data = Data(f"sqlite:///{tmp_path}/emq.db", f"sqlite:///{tmp_path}/emq.db")
    data.create("wide", 25_000)
    data.publish("wide", range(3000))
    end = planned(data, None)
    progress = Progress.unpacked(end)
    assert len(progress.ends) == end["queues"] == 1500
    assert sum(at.offset - 1 for at in progress.ends.values()) == 3000
    assert '"wide/' not in str(end)
    assert len(str(end)) < 10_000
