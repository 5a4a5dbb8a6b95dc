"""Forged and damaged segments: whatever contradicts itself voids the proof in a line, and nothing raises."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from emq.trail import events, schema, segments
from emq_proof.proof import Expectations, Proof, prove
from support.hostile.told import CONTENT, T0_US, S, Told, at, write


@pytest.fixture
def trail(tmp_path: Path) -> Path:
    """A clean trail of two sources."""
    told = Told()
    told.own()
    for i in range(5):
        told.message(f"m{i}", 10 * (i + 1), i, key="k", took=1)
    told.publish(CONTENT, offset=None)
    told.deliver(CONTENT, 1000, -1)
    told.release(1010)
    told.write(tmp_path)
    assert prove(tmp_path, Expectations(still_queued=())).ok
    return tmp_path


def segment(directory: Path, source: str = "host") -> Path:
    return directory / f"{source}-{T0_US}-000001.parquet"


def rewritten(path: Path, change: Callable[[Any], Any] = lambda table: table, **header: Any) -> None:
    with pq.ParquetFile(path) as file:
        was, table = segments.Header.decode(file.schema_arrow.metadata), file.read()
    segments.write(path.parent, was._replace(**header), change(table))


def with_row(**values: Any) -> Callable[[Path], None]:
    """One row of the host changed; `event` says which."""

    def change(directory: Path) -> None:
        def of(table: Any) -> Any:
            rows = table.to_pylist()
            row = next(row for row in rows if row["event"] == values.get("was", events.STARTED))
            row |= {name: value for name, value in values.items() if name != "was"}
            return pa.Table.from_pylist(rows, schema=table.schema)

        rewritten(segment(directory), of)

    return change


def with_column(name: str, make: Callable[[Any], Any] | None) -> Callable[[Path], None]:
    """A column of the host's segment made into another, or left out."""

    def change(directory: Path) -> None:
        def of(table: Any) -> Any:
            i = table.schema.names.index(name)
            return table.remove_column(i) if make is None else table.set_column(i, name, make(table[name]))

        rewritten(segment(directory), of)

    return change


def a_header_wider_than_its_rows(directory: Path) -> None:
    rewritten(segment(directory), first_us=T0_US - 3600 * S, last_us=T0_US + 3600 * S)


def with_metadata(change: Callable[[dict[bytes, bytes]], object]) -> Callable[[Path], None]:
    """The values of the host's header changed, as damage to a footer would, which has no checksum of its own."""

    def changed(directory: Path) -> None:
        path = segment(directory)
        with pq.ParquetFile(path) as file:
            metadata, table = dict(file.schema_arrow.metadata), file.read()
        change(metadata)
        pq.write_table(table.replace_schema_metadata(metadata), path)

    return changed


def fewer_events_dropped_than_before(directory: Path) -> None:
    first = segments.Header("host", T0_US, 0, T0_US, T0_US, 7)
    segments.write(directory, first, schema.SCHEMA.empty_table())


def a_segment_after_the_last(directory: Path) -> None:
    header = segments.Header("host", T0_US, 2, at(1300), at(1300))
    segments.write(directory, header, schema.SCHEMA.empty_table())


def two_last_segments(directory: Path) -> None:
    header = segments.Header("host", T0_US, 2, at(1300), at(1300), closed=True)
    segments.write(directory, header, schema.SCHEMA.empty_table())


def a_second_host_of_the_same_name(directory: Path) -> None:
    told = Told()
    told.own(50, epoch=2)
    told.message("n", 60, 9, epoch=2)
    table = pa.Table.from_pylist(told.rows[:1] + told.rows[2:], schema=schema.SCHEMA)
    write(directory, "host", table, run_us=T0_US + 50_000)


def the_segment_of_a_producer_copied_into_a_run_of_its_own(directory: Path) -> None:
    with pq.ParquetFile(segment(directory, "producer")) as file:
        table = file.read()
    write(directory, "producer", table, run_us=T0_US + 1)


def a_link_to_a_segment(directory: Path) -> None:
    (directory / f"host-{T0_US}-000002.parquet").symlink_to(segment(directory))


def a_link_to_nothing(directory: Path) -> None:
    (directory / f"host-{T0_US}-000002.parquet").symlink_to(directory / "nowhere")


def a_directory_named_like_a_segment(directory: Path) -> None:
    (directory / f"host-{T0_US}-000002.parquet").mkdir()


def an_empty_file(directory: Path) -> None:
    (directory / f"host-{T0_US}-000002.parquet").touch()


def two_segments_change_places(directory: Path) -> None:
    told = Told()
    told.rows = []
    told.message("late", 1500, 9)
    rows = [row for row in told.rows if row["source"] == "host"]
    last = segments.Header("host", T0_US, 2, at(1500), at(1501), closed=True)
    rewritten(segment(directory), closed=False)
    segments.write(directory, last, pa.Table.from_pylist(rows, schema=schema.SCHEMA))
    with pq.ParquetFile(segment(directory)) as file:
        early, table = segments.Header.decode(file.schema_arrow.metadata), file.read()
    segments.write(directory, early._replace(seq=2, closed=True), table)
    segments.write(directory, last._replace(seq=1, closed=False), pa.Table.from_pylist(rows, schema=schema.SCHEMA))


FORGED: dict[str, tuple[Callable[[Path], None], str]] = {
    "no event": (with_row(event=None), "event"),
    "an event that there is not": (with_row(event="finished"), "event"),
    "no time": (with_row(time_us=None), "time_us"),
    "no topic": (with_row(topic=None), "topic"),
    "no group": (with_row(group=None), "group"),
    "a negative group": (with_row(group=-1), "group"),
    "a start without an id": (with_row(id=None), "id"),
    "an end without an id": (with_row(was=events.SETTLED, id=None), "id"),
    "a start without an attempt": (with_row(attempt=None), "attempt"),
    "attempt 0": (with_row(attempt=0), "attempt"),
    "a negative priority": (with_row(priority=-1), "priority"),
    "a start without an offset": (with_row(offset=None), "offset"),
    "an offset below those of lanes": (with_row(offset=-7), "offset"),
    "a start without an epoch": (with_row(epoch=None), "epoch"),
    "an owner without an epoch": (with_row(was=events.OWNED, epoch=None), "epoch"),
    "a range that ends before it begins": (
        with_row(was=events.SETTLED, event=events.SKIPPED, offset=90, until=80),
        "until",
    ),
    "a range without an end": (with_row(was=events.SETTLED, event=events.DROPPED, offset=90, until=None), "until"),
    "a retry that is never due": (with_row(was=events.SETTLED, event=events.RETRIED), "due_ms"),
    "ready after its start": (with_row(ready_us=at(5000)), "ready_us"),
    "a column missing": (with_column("key", None), "key"),
    "times as floating point": (with_column("time_us", lambda c: c.cast(pa.float64())), "time_us"),
    "attempts as text": (with_column("attempt", lambda c: c.cast(pa.string())), "attempt"),
    "a header without one of its values": (
        with_metadata(lambda m: m.pop(b"emq.dropped")),
        "foreign, it carries no trail metadata",
    ),
    "a header without its checksum": (
        with_metadata(lambda m: m.pop(b"emq.check")),
        "its header has no checksum, as this version writes it",
    ),
    "a header without its checksum that says that its run went on": (
        with_metadata(lambda m: m.update({b"emq.closed": b"0"}) or m.pop(b"emq.check")),
        "its header has no checksum, as this version writes it",
    ),
    "a header that says that its run went on": (
        with_metadata(lambda m: m.update({b"emq.closed": b"0"})),
        "does not match the checksum",
    ),
    "a header wider than its rows": (a_header_wider_than_its_rows, "its rows are of"),
    "fewer events dropped than before": (fewer_events_dropped_than_before, "7 events were dropped"),
    "a segment after the last": (a_segment_after_the_last, "after the last one of its run"),
    "two last segments": (two_last_segments, "after the last one of its run"),
    "a second host of the same name": (a_second_host_of_the_same_name, "at the same time"),
    "a link to a segment": (a_link_to_a_segment, "foreign, it says"),
    "a link to nothing": (a_link_to_nothing, "foreign, not a segment"),
    "a directory named like a segment": (a_directory_named_like_a_segment, "foreign, not a segment"),
    "an empty file": (an_empty_file, "truncated or damaged"),
    "two segments change places": (two_segments_change_places, "dated before those of earlier segments"),
}


@pytest.mark.parametrize(("forge", "text"), FORGED.values(), ids=FORGED)
def test_forged_evidence_proves_nothing(trail: Path, forge: Callable[[Path], None], text: str) -> None:
    forge(trail)
    proof: Proof = prove(trail, Expectations(still_queued=()))
    assert any(text in reason and "\n" not in reason for reason in proof.void_reasons), proof


# ------------------------------------------------------------------------------------------------------------- lawful


def a_host_that_restarted_under_its_name(directory: Path) -> None:
    told = Told()
    told.own(2000, epoch=2)
    told.publish("n", 2001, 9, source="host", published_us=at(2001))
    told.deliver("n", 2005, 9, epoch=2, published_us=at(2001))
    write(directory, "host", pa.Table.from_pylist(told.rows, schema=schema.SCHEMA), run_us=at(1900))


def a_host_that_was_idle_and_restarted(directory: Path) -> None:
    for run_us in (T0_US, at(40)):
        write(directory, "idle", schema.SCHEMA.empty_table(), run_us=run_us)


@pytest.mark.parametrize(
    "change",
    [
        a_host_that_restarted_under_its_name,
        a_host_that_was_idle_and_restarted,
        the_segment_of_a_producer_copied_into_a_run_of_its_own,
    ],
)
def test_odd_evidence_is_believed(trail: Path, change: Callable[[Path], None]) -> None:
    change(trail)
    proof = prove(trail, Expectations(still_queued=()))
    assert proof.ok, proof


def test_one_settled_twice_is_found_though_its_publish_is_told_twice(trail: Path) -> None:
    the_segment_of_a_producer_copied_into_a_run_of_its_own(trail)
    told = Told()
    told.own(2000, "next", 2)
    told.deliver("m1", 2100, 1, key="k", source="next", epoch=2)
    write(trail, "next", pa.Table.from_pylist(told.rows, schema=schema.SCHEMA))
    assert prove(trail, Expectations(still_queued=())).surplus == 1
