"""What is read, and by which task: options, filters, ranges of offsets, the progress of a stream. No session needed."""

from __future__ import annotations

import datetime

import pytest
from pyspark.sql import datasource as ds
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from emq.offsets.lag import SlotLag
from emq.producer import Outgoing
from emq.runtime import errors
from emq.storage.log_store import Batch, Bounds
from emq.topics.model import Topic, split
from emq_spark.source import options as so
from emq_spark.source import schema as source_schema
from emq_spark.source import write
from emq_spark.source.filters import Range, Wanted
from emq_spark.source.progress import Position, Progress, advanced
from emq_spark.source.spans import (
    CALL,
    CALL_BYTES,
    CALL_QUEUES,
    FIRST_CALL,
    Reading,
    Span,
    dealt,
    found_in,
    queues_of,
    reads_of,
    shared_out,
    spans_of,
)
from emq_spark.source.tables import shared_by_dead

STORE = {"store": "redis://localhost"}
NAMES, NUMBERS = ("topic", "priority", "group"), ("group", "offset", "published")


# ------------------------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("given", "use", "text"),
    [
        ({"topcis": "a"}, so.READ, "no option 'topcis'.*store, database, environment, what, topics"),
        ({"topcis": "a"}, so.WRITE, "no option 'topcis'.*topic, per_second, run"),
        ({"topics": "a"}, so.WRITE, "'topics' is for read and readStream, not for write; the options are: .*topic"),
        ({"end": "tail"}, so.STREAM, "'end' is for read, not for readStream"),
        ({"start": "now"}, so.READ, "start 'now' must be head, tail, a time such as .* or offsets by queue"),
        ({"start": '{"t/0/mid": 0}'}, so.STREAM, "offsets by queue such as"),
        ({"end": "{"}, so.READ, "must be head, tail, a time"),
        ({"run": "a"}, so.STREAM_WRITE, "'run' is for write"),
        ({"run": "a b"}, so.WRITE, "run 'a b' must be 1 to 64 ASCII characters"),
        ({"what": "queues"}, so.READ, "what 'queues' must be one of messages, catalog, offsets, lag, dead"),
        ({"environment": "test"}, so.READ, "must be one of online, sandbox"),
        ({"messages_per_partition": "0"}, so.READ, "messages_per_partition '0' must be a whole number"),
        ({"pushdown": "yes"}, so.READ, "pushdown 'yes' must be true or false"),
        ({"messages_per_batch": "1e3"}, so.STREAM, "must be a whole number"),
        ({"per_second": "nan"}, so.WRITE, "per_second 'nan' must be a number above 0"),
        ({"store": "memory:"}, so.READ, "cannot be seen by Spark's workers"),
    ],
)
def test_a_wrong_option_is_named_with_the_right_ones(given: dict[str, str], use: str, text: str) -> None:
    with pytest.raises(errors.InvalidSettings, match=text) as caught:
        so.parse({**STORE, **given}, use)
    assert "\n" not in str(caught.value)


def test_options_are_taken_in_any_case_and_what_spark_adds_is_left_alone() -> None:
    found = so.parse({"STORE": "redis://localhost", "Topics": "a*", "checkpointLocation": "x", "path": "y"}, so.STREAM)
    assert (found.settings.store, found.topics) == ("redis://localhost", "a*")


def test_columns_that_cannot_be_are_named() -> None:
    def chosen(columns: str) -> str:
        return source_schema.chosen(so.parse({**STORE, "columns": columns}))

    assert chosen("offset, topic") == "`offset` bigint, `topic` string"
    with pytest.raises(errors.InvalidSettings, match="no column 'ofset'; its columns are topic, group"):
        chosen("ofset")
    with pytest.raises(errors.InvalidSettings, match="repeats a name"):
        chosen("topic,topic")
    with pytest.raises(errors.InvalidSettings, match="'offset' of 'messages' is bigint, not string"):
        source_schema.check_read(so.MESSAGES, StructType([StructField("offset", StringType())]))


@pytest.mark.parametrize(
    ("columns", "topic", "text"),
    [
        ({"payload": LongType()}, "t", "'payload' is bigint and must be binary or string; cast it"),
        ({"payload": StringType(), "qps": DoubleType()}, "t", "'qps' cannot be published; the columns are topic,"),
        ({"key": StringType()}, "t", "no column 'payload'"),
        ({"payload": StringType()}, "", "neither a column 'topic' nor the option topic"),
    ],
)
def test_rows_that_cannot_be_published_are_refused_before_the_first(
    columns: dict[str, object], topic: str, text: str
) -> None:
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidSettings, match=text):
        source_schema.check_write(schema, topic)


# ------------------------------------------------------------------------------------------------------------- filters


def test_filters_on_queue_offset_and_time_are_taken_and_the_others_left_to_spark() -> None:
    noon = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
    taken = [
        ds.EqualTo(("topic",), "a"),
        ds.In(("topic",), ("a", "b")),
        ds.IsNotNull(("topic",)),
        ds.EqualNullSafe(("priority",), "high"),
        ds.GreaterThan(("offset",), 9),
        ds.LessThanOrEqual(("offset",), 19),
        ds.In(("group",), (3, 4)),
        ds.EqualTo(("group",), 3),
        ds.LessThan(("group",), 7),
        ds.GreaterThanOrEqual(("published",), noon),
    ]
    left = [
        ds.Not(ds.EqualTo(("topic",), "a")),
        ds.EqualTo(("key",), "a"),
        ds.IsNull(("topic",)),
        ds.IsNotNull(("published",)),
        ds.EqualTo(("headers", "a"), "a"),
        ds.GreaterThan(("offset",), 1.5),
        ds.EqualTo(("published",), datetime.datetime(2026, 1, 1)),
    ]
    wanted = Wanted()
    assert list(wanted.take([*taken, *left], NAMES, NUMBERS)) == left
    assert wanted.values == {"topic": {"a"}, "priority": {"high"}, "group": {3}}
    assert (wanted.range("offset"), wanted.range("group")) == (Range(10, 20), Range(None, 7))
    assert wanted.range("published") == Range(1_767_268_800_000_000, None)


def test_filters_that_exclude_each_other_leave_nothing() -> None:
    wanted = Wanted()
    wanted.take([ds.EqualTo(("topic",), "a"), ds.EqualTo(("topic",), "b")], NAMES, NUMBERS)
    assert not wanted.admits(topic="a")
    assert not wanted.admits(topic="b")


# --------------------------------------------------------------------------------------------------------------- spans


def test_only_queues_that_may_hold_what_is_wanted_are_asked() -> None:
    topics = [split(Topic(name, 100)) for name in ("a", "b")]
    wanted = Wanted()
    wanted.take([ds.EqualTo(("topic",), "b"), ds.EqualTo(("priority",), "low")], NAMES, NUMBERS)
    assert queues_of(topics, wanted) == ["b/0/low", "b/1/low"]
    wanted.take([ds.GreaterThanOrEqual(("group",), 1)], NAMES, NUMBERS)
    assert queues_of(topics, wanted) == ["b/1/low"]


def test_long_queues_are_cut_into_ranges_and_short_ones_share_a_task() -> None:
    bounds = {"t/0/a": Bounds(1, 26), "t/0/b": Bounds(7, 7), "t/1/a": Bounds(5, 8), "t/1/b": Bounds(1, 3)}
    parts = dealt(spans_of(bounds, Wanted()), 10)
    assert parts == [
        (Span("t/0/a", 1, 11),),
        (Span("t/0/a", 11, 21),),
        (Span("t/0/a", 21, 26), Span("t/1/a", 5, 8), Span("t/1/b", 1, 3)),
    ]
    assert dealt([], 10) == []


def test_a_call_is_bounded_in_messages_and_in_queues() -> None:
    assert [read.limit for read in reads_of([Span("a", 0, CALL - 10), Span("b", 0, 50), Span("c", 0, 50)])] == [
        CALL - 10,
        10,
    ]
    assert len(reads_of([Span("a", 0, 1)] * 2 * CALL_QUEUES)) == CALL_QUEUES
    assert all(read.epoch is None for read in reads_of([Span("a", 0, 1)]))


def test_holes_are_passed_over_and_nothing_beyond_a_span_is_taken() -> None:
    spans = [Span("a", 1, 6), Span("b", 1, 6), Span("c", 1, 6)]
    answers = [
        Batch([1, 4, 7, 8], [b"1", b"4", b"7", b"8"], 9, False),  # holes do not count towards the limit
        Batch([2], [b"2"], 3, False),
        Batch([], [], 6, True),
    ]
    found, left = found_in(spans, answers)
    assert [list(offsets) for _, offsets, _ in found] == [[1, 4], [2], []]
    assert [span for span, _, _ in found] == [Span("a", 1, 6), Span("b", 1, 3), Span("c", 1, 6)]
    assert left == [Span("b", 3, 6)]


@pytest.mark.parametrize("size", [10, 100_000, CALL_BYTES])
def test_calls_ask_for_as_much_as_has_room_in_one(size: int) -> None:
    reading = Reading([Span("a", 0, 100_000)])
    asked, body = [], bytes(size)
    for _ in range(5):
        [read] = reading.reads()
        asked.append(read.limit)
        got = max(1, min(read.limit, CALL_BYTES // size))
        reading.take([Batch(range(read.start, read.start + got), [body] * got, read.start + got, False)])
    assert asked[0] == FIRST_CALL
    assert asked[-1] == min(CALL, CALL_BYTES // size)


def test_topics_share_a_task_as_long_as_they_have_few_dead_letters() -> None:
    dead = [SlotLag(name, 0, 0, 0, count) for name, count in (("a", 3), ("b", 4), ("c", 5), ("d", 90), ("e", 1))]
    assert shared_by_dead(dead, 10) == [("a", "b"), ("c",), ("d",), ("e",)]
    assert shared_by_dead([], 10) == []


def test_what_is_made_ready_at_once_is_bounded_in_rows_and_in_bytes() -> None:
    def sizes(payload: int, size: int) -> list[int]:
        made = (Outgoing("t", bytes(payload), str(n)) for n in range(50))
        return [len(chunk) for chunk in write.chunks(made, size)]

    assert sizes(10, 20) == [20, 20, 10]
    assert sizes(write.CHUNK_BYTES // 15, 20) == [16, 16, 16, 2]


@pytest.mark.parametrize(("room", "backlogs"), [(10, [4, 5]), (10, [100, 50, 0, 1]), (2, [9, 9, 9, 9])])
def test_room_is_shared_out_so_that_no_queue_is_left_behind(room: int, backlogs: list[int]) -> None:
    shares = shared_out(room, backlogs)
    assert all(0 < share <= held if held else share == 0 for share, held in zip(shares, backlogs, strict=True))
    assert sum(shares) <= max(room, len(backlogs))


# -------------------------------------------------------------------------------------------------------------- stream


def progress(**offsets: int) -> Progress:
    return Progress({f"{queue}/0/a": Position(offset) for queue, offset in offsets.items()}, {})


def test_a_batch_follows_from_its_end_alone_and_batches_join_without_gap() -> None:
    bounds = {"t/0/a": Bounds(3, 13), "u/0/a": Bounds(1, 5)}
    at = progress(t=3, u=1)
    read: dict[str, list[int]] = {"t/0/a": [], "u/0/a": []}
    while (end := advanced(at, bounds, 5, lost_fails=True)) is not at:
        for queue, start, stop, _ in Progress.unpacked(end.packed()).spans():
            read[queue] += range(start, stop)
        at = end
    assert read == {"t/0/a": [*range(3, 13)], "u/0/a": [*range(1, 5)]}


def test_a_queue_that_comes_up_is_read_from_its_head_and_one_that_goes_is_forgotten() -> None:
    bounds = {"new/0/a": Bounds(4, 9, 7), "idle/0/a": Bounds(1, 1)}
    end = advanced(progress(old=5), bounds, None, lost_fails=True)
    assert end.spans() == [Span("new/0/a", 4, 9, 7)]
    assert "old/0/a" not in end.ends


def test_progress_stays_as_it_is_while_there_is_nothing_to_read() -> None:
    at = progress(t=5)
    assert advanced(at, {"t/0/a": Bounds(1, 5), "u/0/a": Bounds(1, 1)}, None, lost_fails=True) is at


def test_the_progress_forgets_a_topic_that_is_gone_although_there_is_nothing_to_read() -> None:
    """The store may forget the topic, too. The next one of its name is read from its head."""
    at, bounds = progress(t=5, u=1), {"u/0/a": Bounds(1, 1)}
    end = advanced(at, bounds, None, lost_fails=True)
    assert ({*end.ends}, end.spans()) == ({"u/0/a"}, [])
    assert advanced(end, bounds, None, lost_fails=True) is end
    again = advanced(end, {**bounds, "t/0/a": Bounds(1, 3, 8)}, None, lost_fails=True)
    assert again.spans() == [Span("t/0/a", 1, 3, 8)]


def test_a_queue_that_ends_before_the_progress_is_noticed() -> None:
    at, bounds = progress(t=50), {"t/0/a": Bounds(1, 9)}
    with pytest.raises(errors.EMQError, match=r"'t/0/a': offsets 9 to 49 are lost.*set the option trimmed to 'skip'"):
        advanced(at, bounds, None, lost_fails=True)
    assert advanced(at, bounds, None, lost_fails=False).spans() == [Span("t/0/a", 1, 9)]


def test_what_was_trimmed_unread_is_noticed_also_where_nothing_comes_after() -> None:
    at = progress(t=5)
    with pytest.raises(errors.EMQError, match=r"'t/0/a': offsets 5 to 8 were trimmed"):
        advanced(at, {"t/0/a": Bounds(9, 9)}, None, lost_fails=True)
    assert advanced(at, {"t/0/a": Bounds(9, 9)}, None, lost_fails=False) is at


def test_a_queue_that_was_made_again_is_noticed_and_skipping_goes_on_at_its_head() -> None:
    at = Progress({"t/0/a": Position(5, 1), "u/0/a": Position(5)}, {})
    bounds = {"t/0/a": Bounds(2, 20, 2), "u/0/a": Bounds(1, 6, 3)}
    with pytest.raises(
        errors.EMQError, match=r"'t/0/a' was lost with its store and made again since it was read up to"
    ):
        advanced(at, bounds, None, lost_fails=True)
    end = advanced(at, bounds, None, lost_fails=False)
    assert end.spans() == [Span("t/0/a", 2, 20, 2), Span("u/0/a", 5, 6, 3)]
    assert advanced(end, bounds, None, lost_fails=True) is end


def test_a_queue_that_came_back_as_it_was_before_is_noticed() -> None:
    at, bounds = Progress({"t/0/a": Position(5, 1)}, {}), {"t/0/a": Bounds(1, 20, 1)}
    with pytest.raises(errors.EMQError, match=r"'t/0/a' has another message at offset 4 than before"):
        advanced(at, bounds, None, lost_fails=True, others={"t/0/a"})
    end = advanced(at, bounds, None, lost_fails=False, others={"t/0/a"})
    assert end.spans() == [Span("t/0/a", 1, 20, 1)]


def test_a_failure_of_many_queues_names_some_and_counts_the_rest_in_one_line() -> None:
    names = [f"t{n}" for n in range(1500)]
    at = progress(**dict.fromkeys(names, 5))
    with pytest.raises(errors.EMQError) as told:
        advanced(at, {f"{name}/0/a": Bounds(9, 9) for name in names}, None, lost_fails=True)
    text = str(told.value)
    assert (text.count("offsets 5 to 8"), "\n" in text, len(text) < 600) == (3, False, True)
    assert "and so for 1,497 more queues" in text


def test_progress_of_another_form_is_named_in_one_line() -> None:
    for stored in ({"ends": {"t/0/a": 5}, "begins": {}}, {"version": 2, "ends": "x", "begins": "y"}, {"version": 2}):
        with pytest.raises(errors.EMQError, match=r"checkpoint.*new checkpointLocation") as told:
            Progress.unpacked(stored)
        assert "\n" not in str(told.value)


def test_lag_counts_what_is_stored_behind_the_progress() -> None:
    bounds = {"t/0/a": Bounds(1, 9), "u/0/a": Bounds(7, 9), "new/0/a": Bounds(1, 3), "done/0/a": Bounds(1, 5)}
    lag = progress(t=5, u=5, done=5).lag(bounds)
    assert lag == {"messages": 8, "queues": 3, "most": 4, "most_in": "t/0/a"}
