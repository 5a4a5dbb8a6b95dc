"""Streams over a store that was emptied or restored and has grown past what was read: nothing is passed over."""

from __future__ import annotations

from pathlib import Path

import pytest
import streams
from emq_data import Data
from replaced_store import Replaced

from emq.runtime import errors
from emq_spark.source.progress import Progress
from emq_spark.source.stream import Stored


def planned(data: Data, at: Stored | None = None, **options: str) -> Stored:
    """Return the end of the next batch."""
    with streams.opened(data, **options) as stream:
        return streams.next_batch(stream, at)


def begun(data: Data, **options: str) -> Stored:
    with streams.opened(data, **options) as stream:
        return stream.initialOffset()


def read(data: Data, start: Stored, end: Stored, **options: str) -> list[int]:
    with streams.opened(data, **options) as stream:
        return streams.offsets_of(stream, stream.partitions(start, end))


def test_a_stream_over_an_emptied_store_fails_by_name_or_reads_it_from_its_head(store: Replaced) -> None:
    store.data.create("t", 50)
    store.data.publish("t", range(100))
    end = planned(store.data)
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
    end = planned(store.data)
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
    begin = begun(store.data, start="tail")
    restore()
    store.data.publish("t", range(20))
    with pytest.raises(errors.EMQError, match="has another message at offset 20 than before"):
        planned(store.data, begin)


def test_a_topic_that_was_deleted_and_made_again_is_read_whole(store: Replaced) -> None:
    store.data.create("t", 50)
    store.data.publish("t", range(20))
    end = planned(store.data)
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
    begin = begun(store.data)
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
    of_read = streams.reader(store.data)
    with streams.opened(store.data) as of_stream:
        begin = of_stream.initialOffset()
        of_batch = [*of_stream.partitions(begin, streams.next_batch(of_stream, begin))]
        of_table = [*of_read.partitions()]
        store.lose()
        store.data.publish("t", range(30))
        with pytest.raises(errors.EMQError, match="queue 't/0/mid' was lost with its store and made again"):
            streams.offsets_of(of_stream, of_batch)
        with pytest.raises(errors.EMQError, match="queue 't/0/mid' was lost with its store and made again"):
            streams.offsets_of(of_read, of_table)


def test_a_small_progress_stands_for_many_queues(tmp_path: Path) -> None:
    """Spark shows it with each failure of the query; bare it had 29,000 characters."""
    data = Data(f"sqlite:///{tmp_path}/emq.db", f"sqlite:///{tmp_path}/emq.db")
    data.create("wide", 25_000)
    data.publish("wide", range(3000))
    end = planned(data)
    progress = Progress.unpacked(end)
    assert len(progress.ends) == end["queues"] == 1500
    assert sum(at.offset - 1 for at in progress.ends.values()) == 3000
    assert '"wide/' not in str(end)
    assert len(str(end)) < 10_000
