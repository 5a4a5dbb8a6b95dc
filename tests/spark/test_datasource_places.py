"""Reads and streams that begin, and reads that end, at offsets by queue or at a time."""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Sequence

import pytest
import streams
from emq_data import Data

from emq.app import App
from emq.runtime import errors
from emq.storage import message
from emq.storage.log_store import Put, Trim
from emq_spark.source.progress import Progress


def read(data: Data, **options: str) -> list[int]:
    """Return the offsets that a read yields."""
    of = streams.reader(data, **options)
    return streams.offsets_of(of, of.partitions())


def streamed(data: Data, **options: str) -> list[tuple[str, int, int]]:
    """Return the spans of a new query's first batch."""
    with streams.opened(data, **options) as stream:
        end = streams.next_batch(stream)
    return [(span.queue, span.start, span.end) for span in Progress.unpacked(end).spans()]


def put(data: Data, queue: str, seconds: Sequence[float]) -> None:
    """Put messages that were published at these seconds of 2026."""
    bodies = [message.encode("m", b"x", None, at_us(s), {}) for s in seconds]

    async def done(app: App) -> None:
        await app.store.log.put([Put(queue, bodies)])

    data.do(done)


def at_us(second: float) -> int:
    return int((datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC).timestamp() + second) * 1_000_000)


def at(second: float) -> str:
    return datetime.datetime.fromtimestamp(at_us(second) / 1e6, datetime.UTC).isoformat()


def test_a_read_begins_and_ends_at_offsets_by_queue(data: Data) -> None:
    data.create("t", 50)
    data.publish("t", range(20))
    data.publish("t", range(10), priority="high")
    assert read(data, start='{"t/0/mid": 15, "t/0/high": 11}') == [15, 16, 17, 18, 19, 20]
    assert read(data, start='{"t/0/mid": 15}', end='{"t/0/mid": 17, "t/0/high": 1}') == [15, 16]
    assert read(data, end="head") == read(data, start="tail") == []
    data.do(lambda app: app.store.log.trim([Trim("t/0/mid", 18, None)]))
    assert read(data, start='{"t/0/mid": 15, "t/0/high": 11}') == [18, 19, 20]


def test_a_stream_begins_at_offsets_by_queue_and_fails_where_these_were_trimmed(data: Data) -> None:
    data.create("t", 50)
    data.publish("t", range(20))
    data.publish("t", range(3), priority="high")
    starts = json.dumps({"t/0/mid": 15})
    assert streamed(data, start=starts) == [("t/0/high", 1, 4), ("t/0/mid", 15, 21)]
    data.do(lambda app: app.store.log.trim([Trim("t/0/mid", 18, None)]))
    with pytest.raises(errors.EMQError, match="queue 't/0/mid': offsets 15 to 17 were trimmed"):
        streamed(data, start=starts)


@pytest.mark.parametrize(
    ("start", "text"),
    [
        ('{"t/0/mid": 22}', "queue 't/0/mid' ends at offset 21, before offset 22"),
        ('{"t/0/mdi": 2}', "there is no queue 't/0/mdi' in these topics; queues are named topic/group/priority"),
    ],
)
def test_a_place_that_is_not_there_is_named(data: Data, start: str, text: str) -> None:
    data.create("t", 50)
    data.publish("t", range(20))
    for begins in (read, streamed):
        with pytest.raises(errors.EMQError, match=text):
            begins(data, start=start)


def test_a_read_begins_and_ends_at_a_time(data: Data) -> None:
    data.create("t", 50)
    put(data, "t/0/mid", range(1, 21))
    put(data, "t/0/high", [5.5, 8.5, 100])
    assert read(data, start=at(15)) == [3, *range(15, 21)]
    assert read(data, start=at(8.2), end=at(9)) == [2]
    assert read(data, start=at(0.5)) == [1, 2, 3, *range(1, 21)]
    assert read(data, start=at(1000)) == []
    assert streamed(data, start=at(15)) == [("t/0/high", 3, 4), ("t/0/mid", 15, 21)]


def test_a_time_is_found_over_holes_and_among_many_queues_and_large_messages(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emq_spark.source.places.CALL_QUEUES", 3)
    monkeypatch.setattr("emq_spark.source.places.CALL_BYTES", 1)
    data.create("t", 250)
    chance = random.Random(3)
    wanted = []
    for group in range(5):
        seconds = sorted(chance.uniform(0, 100) for _ in range(chance.randrange(40)))
        put(data, f"t/{group}/mid", seconds)
        data.do(lambda app, group=group: app.store.log.trim([Trim(f"t/{group}/mid", 4, None)]))
        wanted += [offset for offset, second in enumerate(seconds, 1) if second >= 50 and offset >= 4]
    assert sorted(read(data, start=at(50))) == sorted(wanted)
