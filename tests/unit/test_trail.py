"""The trail records everything that it promises to, never blocks, and says what it lost."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from emq.runtime import errors
from emq.storage.message import Message
from emq.trail import NullTrail, TrailSink, events, schema, segments
from emq.trail.options import TrailOptions
from emq.trail.writer import Trail
from emq_trace import trail_lookup
from support.manual_clock import ManualClock

NOW_US = 1_000_000_000_000_000


def open_trail(directory: Path, source: str = "host-1", **options: Any) -> Trail:
    return Trail.open(directory, source, ManualClock(), TrailOptions(**{"rotate_s": 60.0, **options}))


def message(i: int) -> Message:
    return Message(
        f"m{i}",
        b"x",
        f"k{i}",
        NOW_US,
        priority=1,
        topic="shop",
        group=2,
        offset=i,
        ready_us=NOW_US,
        started_us=NOW_US + i,
    )


def rows(directory: Path) -> list[dict[str, Any]]:
    found = segments.read(directory).table.to_pylist()
    return [{k: v for k, v in row.items() if v is not None} for row in found]


def header(path: Path) -> segments.Header:
    return segments._read_segment(path)[0]


class Disk:
    """Stands in for `segments.write`: holds every write back until told to go on, or fails it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.free = threading.Event(), threading.Event()
        self.error: OSError | None = None
        self.write = segments.write
        monkeypatch.setattr(segments, "write", self)

    def __call__(self, directory: Path, header: segments.Header, table: Any) -> None:
        self.reached.set()
        if self.error is not None:
            raise self.error
        assert self.free.wait(10)
        self.write(directory, header, table)


def test_every_event_is_recorded_with_its_columns(tmp_path: Path) -> None:
    trail = open_trail(tmp_path)
    m = message(7)
    mine = {"source": "host-1", "topic": "shop", "group": 2}
    one = {**mine, "priority": 1, "offset": 7, "id": "m7", "key": "k7"}
    trail.record(events.Published(NOW_US + 1, "shop", 2, ["m7", "m8"], 1, NOW_US, range(7, 9), ["k7", None]))
    trail.record(events.Published(NOW_US + 2, "shop", 2, ["m9"], 1, NOW_US))
    trail.record(events.Published(NOW_US + 3, "shop", 2, ["m10"], 1, NOW_US, due_ms=[1_000_000_000_700]))
    trail.record(events.Merged(NOW_US + 4, "shop", 2, ["m9", "m10"], NOW_US + 3))
    trail.record(events.Doubted(NOW_US + 5, "shop", 2, ["m11"], 1))
    m.expires_us = NOW_US + 30
    trail.started(m, 5)
    trail.settled(m, NOW_US + 20)
    trail.record(events.Retried(NOW_US + 21, m, "timeout", 1_000_000_000_500))
    trail.record(events.Dead(NOW_US + 22, m, "gone"))
    trail.record(events.Skipped(NOW_US + 23, "shop", 2, 1, 10, 12))
    trail.record(events.Dropped(NOW_US + 24, "shop", 2, 1, 12, 15))
    trail.record(events.Recalled(NOW_US + 25, "shop", 2, 1, "m9"))
    trail.record(events.Replayed(NOW_US + 26, "shop", 2, 1, "m7"))
    trail.record(events.Owned(NOW_US + 27, "shop", 2, 5))
    trail.record(events.Released(NOW_US + 28, "shop", 2, 5))
    trail.record(events.Lost(NOW_US + 29, "shop", 2, 1, 15, 18))
    assert trail.close()

    published = {**mine, "event": "published", "priority": 1, "published_us": NOW_US}
    assert sorted(rows(tmp_path), key=lambda row: (row["time_us"], row.get("offset", 0))) == [
        {**published, "time_us": NOW_US + 1, "offset": 7, "id": "m7", "key": "k7"},
        {**published, "time_us": NOW_US + 1, "offset": 8, "id": "m8"},
        {**published, "time_us": NOW_US + 2, "id": "m9"},
        {**published, "time_us": NOW_US + 3, "id": "m10", "due_ms": 1_000_000_000_700},
        {**mine, "event": "merged", "time_us": NOW_US + 4, "id": "m9", "published_us": NOW_US + 3},
        {**mine, "event": "merged", "time_us": NOW_US + 4, "id": "m10", "published_us": NOW_US + 3},
        {**mine, "event": "doubted", "time_us": NOW_US + 5, "priority": 1, "id": "m11"},
        {**one, "event": "started", "time_us": NOW_US + 7, "attempt": 1, "epoch": 5}
        | {"published_us": NOW_US, "ready_us": NOW_US, "until": NOW_US + 30},
        {**one, "event": "settled", "time_us": NOW_US + 20, "attempt": 1},
        {**one, "event": "retried", "time_us": NOW_US + 21, "attempt": 1, "reason": "timeout"}
        | {"due_ms": 1_000_000_000_500},
        {**one, "event": "dead", "time_us": NOW_US + 22, "attempt": 1, "reason": "gone"} | {"until": NOW_US + 30},
        {**mine, "event": "skipped", "time_us": NOW_US + 23, "priority": 1, "offset": 10, "until": 12},
        {**mine, "event": "dropped", "time_us": NOW_US + 24, "priority": 1, "offset": 12, "until": 15}
        | {"reason": "max_length"},
        {**mine, "event": "recalled", "time_us": NOW_US + 25, "priority": 1, "id": "m9"},
        {**mine, "event": "replayed", "time_us": NOW_US + 26, "priority": 1, "id": "m7"},
        {**mine, "event": "owned", "time_us": NOW_US + 27, "epoch": 5},
        {**mine, "event": "released", "time_us": NOW_US + 28, "epoch": 5},
        {**mine, "event": "lost", "time_us": NOW_US + 29, "priority": 1, "offset": 15, "until": 18},
    ]


def test_a_closed_trail_is_complete_and_its_segments_are_numbered(tmp_path: Path) -> None:
    trail = open_trail(tmp_path)
    trail.started(message(1), 1)
    trail.flush()
    trail.close()
    assert trail.close(), "closing twice is harmless"
    assert segments.read(tmp_path).flaws == ()
    assert [header(path) for path in sorted(tmp_path.iterdir())] == [
        segments.Header("host-1", NOW_US, 0, NOW_US, NOW_US),
        segments.Header("host-1", NOW_US, 1, NOW_US + 1, NOW_US + 1),
        segments.Header("host-1", NOW_US, 2, NOW_US, NOW_US, closed=True),
    ]


def test_a_segment_is_written_when_it_is_full(tmp_path: Path) -> None:
    trail = open_trail(tmp_path, rotate_rows=10)
    for i in range(25):
        trail.settled(message(i), NOW_US)
    trail.close()
    assert trail.statistics() == (25, 25, 0, 0, 4, 0)
    assert sorted(row["id"] for row in rows(tmp_path)) == sorted(f"m{i}" for i in range(25))


def test_a_segment_is_written_after_a_while_without_being_full(tmp_path: Path) -> None:
    trail = open_trail(tmp_path, rotate_s=0.002)
    trail.settled(message(1), NOW_US)
    deadline = time.monotonic() + 10
    while trail.statistics().written < 1 and time.monotonic() < deadline:
        time.sleep(0.002)
    assert trail.statistics().written == 1
    trail.close()


def test_who_owns_a_group_is_written_before_it_starts_anything(tmp_path: Path) -> None:
    trail = open_trail(tmp_path)
    for group in range(500):
        trail.record(events.Owned(NOW_US, "shop", group, 7))
    deadline = time.monotonic() + 5
    while trail.statistics().written < 500:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert trail.statistics().segments <= 3  # with the one that opened it
    assert {(row["group"], row["epoch"]) for row in rows(tmp_path)} == {(group, 7) for group in range(500)}
    trail.close()


def test_nothing_is_lost_or_doubled_while_the_thread_cuts_in(tmp_path: Path) -> None:
    trail = open_trail(tmp_path, rotate_s=0.0005)
    for i in range(20_000):
        trail.settled(message(i), NOW_US)
        trail.record(events.Published(NOW_US, "shop", 2, [f"m{i}"], 1, NOW_US, [i]))
    trail.close()
    found = [(row["event"], row["offset"]) for row in rows(tmp_path)]
    assert sorted(found) == sorted((event, i) for event in ("settled", "published") for i in range(20_000))
    assert trail.statistics().dropped == 0


def test_a_slow_disk_never_blocks_and_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trail = open_trail(tmp_path, rotate_rows=100, max_pending=1000)
    disk = Disk(monkeypatch)
    most = 0
    for i in range(5000):
        trail.settled(message(i), NOW_US)
        most = max(most, trail.statistics().pending)
    assert disk.reached.wait(10), "the disk is stuck in a write all the while"
    stuck = trail.statistics()
    assert most <= 1000
    assert stuck.written == 0
    assert stuck.dropped >= 4000
    assert stuck.recorded == 5000
    assert not trail.flush(timeout_s=0.001), "whoever waits for the disk is told that it takes too long"

    disk.free.set()
    assert trail.close()
    after = trail.statistics()
    assert (after.pending, after.written + after.dropped) == (0, 5000)
    assert len(rows(tmp_path)) == after.written
    assert header(max(tmp_path.iterdir())).dropped == after.dropped
    assert segments.read(tmp_path).flaws == (f"host-1-{NOW_US}: {after.dropped:,} events were dropped",)


def test_one_huge_publish_cannot_break_the_bound(tmp_path: Path) -> None:
    trail = open_trail(tmp_path, max_pending=100)
    trail.record(events.Published(NOW_US, "shop", 2, ["m"] * 101, 1, NOW_US))
    trail.close()
    assert trail.statistics().dropped == 101


def test_a_broken_disk_is_logged_once_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trail = open_trail(tmp_path)
    disk = Disk(monkeypatch)
    disk.error = OSError(28, "No space left on device")
    with caplog.at_level(logging.ERROR):
        for i in range(3):
            trail.settled(message(i), NOW_US)
            assert trail.flush()
    assert [record.getMessage() for record in caplog.records] == [
        "trail of host-1 dropped 1 event, more may follow: [Errno 28] No space left on device"
    ]
    assert trail.statistics() == (3, 0, 0, 3, 1, 3)

    disk.error = None
    disk.free.set()
    trail.settled(message(3), NOW_US)
    trail.close()
    assert [row["id"] for row in rows(tmp_path)] == ["m3"], "it recovers with the disk"
    assert header(max(tmp_path.iterdir())).dropped == 3


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def torn(table: Any, path: Path, **_: Any) -> None:
        path.write_bytes(b"PAR1 half a segm")
        raise OSError("the disk is full")

    monkeypatch.setattr(pq, "write_table", torn)
    with pytest.raises(OSError, match="the disk is full"):
        segments.write(tmp_path, segments.Header("host-1", 1, 0, 1, 1), schema.SCHEMA.empty_table())
    assert list(tmp_path.iterdir()) == []


def test_events_that_no_column_takes_are_dropped_and_counted(tmp_path: Path) -> None:
    trail = open_trail(tmp_path)
    trail.record(events.Dead(NOW_US, message(1), "\ud800 is no text"))
    trail.flush()
    trail.settled(message(2), NOW_US)
    trail.close()
    assert trail.statistics().dropped == 1
    assert [row["id"] for row in rows(tmp_path)] == ["m2"]


def test_a_restart_of_a_source_is_a_run_of_its_own(tmp_path: Path) -> None:
    first, second = open_trail(tmp_path), open_trail(tmp_path)
    first.close()
    second.close()
    ledger = segments.read(tmp_path)
    assert (ledger.segments, ledger.flaws) == (4, ())


@pytest.mark.parametrize("source", ["", "a/b", ".hidden", "_hidden", "a b", "x" * 101])
def test_a_source_unfit_for_a_file_name_is_refused(tmp_path: Path, source: str) -> None:
    with pytest.raises(errors.InvalidSettings, match="trail source"):
        open_trail(tmp_path, source)


def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(errors.InvalidSettings, match=r"trail directory .*file.* cannot be written"):
        open_trail(tmp_path / "file")


@pytest.mark.parametrize("options", [{"rotate_rows": 0}, {"rotate_s": 0.0}, {"max_pending": 1}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidSettings, match=next(iter(options))):
        TrailOptions(**options)


def test_the_null_trail_takes_the_same_calls(tmp_path: Path) -> None:
    real = open_trail(tmp_path)
    sinks: list[TrailSink] = [NullTrail(), real]
    assert [sink.enabled for sink in sinks] == [False, True]
    for sink in sinks:
        sink.record(events.Owned(NOW_US, "shop", 2, 1))
        sink.started(message(1), 1)
        sink.settled(message(1), NOW_US)
    real.close()


# ------------------------------------------------------------------------------------------------------------ look-up


def test_one_message_is_found_among_many_segments_in_order_of_time(tmp_path: Path) -> None:
    host, producer = open_trail(tmp_path), open_trail(tmp_path, "producer")
    host.settled(message(7), NOW_US + 900)
    host.flush()
    host.started(message(7), 5)
    for i in range(100):
        host.settled(message(100 + i), NOW_US)
    producer.record(events.Published(NOW_US + 1000, "shop", 2, ["m6", "m7"], 1, NOW_US, [6, 7]))
    host.close()
    producer.close()
    assert len(list(tmp_path.iterdir())) == 5
    steps: list[tuple[int, int]] = []
    found = trail_lookup.of_message(tmp_path, "m7", lambda done, total: steps.append((done, total)))
    assert [(e.event, e.source, e.offset) for e in found] == [
        ("published", "producer", 7),
        ("started", "host-1", 7),
        ("settled", "host-1", 7),
    ], "a publish counts from when it began, since it may be recorded after what it led to"
    assert found[1].ready_us == NOW_US
    assert steps[-1] == (5, 5)
    assert trail_lookup.of_message(tmp_path, "m") == []


def test_owners_and_lost_ranges_of_one_group_are_found(tmp_path: Path) -> None:
    trail = open_trail(tmp_path)
    trail.record(events.Owned(NOW_US, "shop", 2, 5))
    trail.record(events.Owned(NOW_US, "shop", 3, 5))
    trail.record(events.Skipped(NOW_US + 1, "shop", 2, 1, 5, 8))
    trail.record(events.Dropped(NOW_US + 2, "shop", 2, 0, 5, 8))
    trail.record(events.Released(NOW_US + 3, "shop", 2, 5))
    trail.close()

    def found(place: tuple[int, int] | None) -> list[str]:
        return [e.event for e in trail_lookup.of_group(tmp_path, "shop", 2, place)]

    assert found((1, 7)) == ["owned", "skipped", "released"]
    assert found((1, 8)) == found((2, 7)) == found(None) == ["owned", "released"]
    assert found((0, 5)) == ["owned", "dropped", "released"]


def test_a_look_up_passes_over_what_is_damaged(tmp_path: Path) -> None:
    trail = open_trail(tmp_path)
    for i in range(3):
        trail.settled(message(i), NOW_US)
        trail.flush()
    trail.close()
    damaged = sorted(tmp_path.iterdir())[2]
    data = bytearray(damaged.read_bytes())
    data[4:400] = b"\xff" * 396
    damaged.write_bytes(data)
    (tmp_path / "notes.txt").write_text("not a segment")
    assert [len(trail_lookup.of_message(tmp_path, f"m{i}")) for i in range(3)] == [1, 0, 1]
    with pytest.raises(errors.InvalidSettings, match="no trail directory"):
        trail_lookup.of_message(tmp_path / "nowhere", "m1")
