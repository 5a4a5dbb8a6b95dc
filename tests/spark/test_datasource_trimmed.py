"""Messages that are trimmed while they are read, or before: what was read counts, what was not is never passed over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
import streams
from emq_data import Data
from streams import next_batch

from emq.app import App
from emq.runtime import errors
from emq.storage.log_store import Trim
from emq.topics import changing
from emq_spark.source import spans as source_spans
from emq_spark.source.progress import Position, Progress
from emq_spark.source.stream import MessagesStream, Stored


@pytest.fixture
def stream(data: Data) -> Iterator[MessagesStream]:
    with streams.opened(data) as stream:
        yield stream


def ends(stored: Stored) -> Mapping[str, Position]:
    return Progress.unpacked(stored).ends


def shrink(data: Data, topic: str, qps: float) -> None:
    """Give a topic so few groups, with all that its other groups hold finished and trimmed."""

    async def shrunk(app: App) -> None:
        now = await app.catalog.update(topic, qps=qps)
        retired = [q for group in range(now.active_groups, now.groups) for q in now.queues(group)]
        bounds = await app.store.log.bounds(retired)
        await app.store.log.trim([Trim(q, b.tail, None, True) for q, b in zip(retired, bounds, strict=True)])
        await app.catalog.change(topic, changing.retired, expected=now)

    data.do(shrunk)


def test_a_group_that_was_retired_before_its_messages_were_read_stops_the_stream(
    data: Data, stream: MessagesStream
) -> None:
    data.create("t", 100)
    data.publish("t", range(20))
    begin = stream.initialOffset()
    shrink(data, "t", 50)
    with pytest.raises(errors.EMQError, match=r"queue 't/1/mid': offsets 1 to .* were trimmed before they were read"):
        next_batch(stream, begin)


def test_a_group_that_was_read_may_be_retired_and_come_back(data: Data, stream: MessagesStream) -> None:
    data.create("t", 100)
    data.publish("t", range(20))
    read = next_batch(stream, stream.initialOffset())
    shrink(data, "t", 50)
    assert next_batch(stream, read) == read
    data.publish("t", range(20, 30))
    later = next_batch(stream, read)
    assert ends(later)["t/1/mid"] == ends(read)["t/1/mid"]
    data.do(lambda app: app.admin.update("t", qps=100))
    data.publish("t", range(30, 50))
    [*parts] = stream.partitions(later, next_batch(stream, later))
    spans = {span.queue: span for part in parts for span in part.value}
    assert spans["t/1/mid"].start == ends(read)["t/1/mid"].offset


def test_messages_that_were_trimmed_before_they_were_read_stop_the_stream_or_are_skipped(data: Data) -> None:
    data.create("t", 50)
    data.publish("t", range(10))

    def offsets(**options: str) -> list[int]:
        with streams.opened(data, **options) as stream:
            return streams.offsets_of(stream, stream.partitions(read, next_batch(stream, read)))

    read = Progress({"t/0/mid": Position(3)}, {}).packed()
    data.do(lambda app: app.store.log.trim([Trim("t/0/mid", 6, None)]))
    with pytest.raises(errors.EMQError, match=r"queue 't/0/mid': offsets 3 to 5 were trimmed.*retention_s.*'skip'"):
        offsets()
    assert offsets(trimmed="skip") == [6, 7, 8, 9, 10]


@pytest.mark.parametrize("upto", [5, 9])
def test_what_is_trimmed_after_it_was_read_stops_no_stream_and_what_is_trimmed_before_does(
    data: Data, stream: MessagesStream, monkeypatch: pytest.MonkeyPatch, upto: int
) -> None:
    monkeypatch.setattr(source_spans, "FIRST_CALL", 2)
    monkeypatch.setattr(source_spans, "GROWTH", 1)
    data.create("t", 50)
    data.publish("t", range(10))
    begin = stream.initialOffset()
    [partition] = stream.partitions(begin, next_batch(stream, begin))
    batches = stream.read(partition)
    read = next(batches).column("offset").to_pylist()  # and the next call, for offsets 3 and 4, is under way
    data.do(lambda app: app.store.log.trim([Trim("t/0/mid", upto, None)]))
    if upto == 9:
        with pytest.raises(errors.EMQError, match="offsets 5 to 8 were trimmed before they were read"):
            list(batches)
    else:
        read += [offset for batch in batches for offset in batch.column("offset").to_pylist()]
        assert read == [*range(1, 11)]
