"""Segments that were spoiled void the proof, and what is lawful in them does not; queues that are gone are found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import audit_story
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from audit_story import T0_US, S, Story
from pyspark.sql import SparkSession
from test_audit import findings, run

from emq.trail import events, segments
from emq_spark.audit.offset_audit import Audit


def _segment(directory: Path, source: str, seq: int) -> Path:
    return directory / "trail" / f"{source}-{T0_US}-{seq:06}.parquet"


def _rewritten(path: Path, change: Callable[[Any], Any], *, is_told: bool = True) -> None:
    """Change the rows; `is_told`: the header says of which time they are now."""
    with pq.ParquetFile(path) as file:
        header, table = segments.Header.decode(file.schema_arrow.metadata), change(file.read())
    if is_told:
        times = pc.min_max(table["time_us"]).as_py()
        header = header._replace(first_us=times["min"], last_us=times["max"])
    segments.write(path.parent, header, table)


def _late(table: Any, which: Any) -> Any:
    late = pc.if_else(which, pc.add(table["time_us"], S), table["time_us"])
    return table.set_column(table.schema.names.index("time_us"), "time_us", late)


def _of(table: Any, topic: str, group: int) -> Any:
    return pc.and_(pc.equal(table["topic"], topic), pc.equal(table["group"], group))


def _stranger(table: Any) -> Any:
    return table.set_column(table.schema.names.index("source"), "source", pa.array(["host-9"] * table.num_rows))


CUT_US = T0_US + 2 * S + 500_000
"""Before it begins the second segment of each host."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Story, Path]:
    directory = tmp_path_factory.mktemp("written")
    story = audit_story.clean(directory / "made")
    story.unclosed = {"host-0", "host-1"}
    story.write(directory, lambda row: bool(row["time_us"] < CUT_US))
    story.unclosed = set()
    story.write(directory, lambda row: bool(row["time_us"] >= CUT_US), seq=1)
    return story, directory


def _audited(spark: SparkSession, written: tuple[Story, Path], tmp_path: Path, change: Callable[[Path], None]) -> Audit:
    """The audit of a copy of the clean run that was changed."""
    story, directory = written
    for name in ("trail", "ledger"):
        for path in (directory / name).rglob("*"):
            copy = tmp_path / path.relative_to(directory)
            if path.is_file():
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(path.read_bytes())
    change(tmp_path)
    return run(spark, story, tmp_path, written=True)


def one_group_a_second_late(segment: Path) -> None:
    _rewritten(segment, lambda table: _late(table, _of(table, "tenant-0003", 1)))


def rows_of_another_host(segment: Path) -> None:
    _rewritten(segment, _stranger)


def times_that_the_header_does_not_tell(segment: Path) -> None:
    _rewritten(segment, lambda table: _late(table, pc.equal(table["event"], events.RELEASED)), is_told=False)


def a_bit_of_an_uncompressed_page(segment: Path) -> None:
    with pq.ParquetFile(segment) as file:
        metadata, table = file.schema_arrow.metadata, file.read()
    pq.write_table(table.replace_schema_metadata(metadata), segment, compression="none", write_page_checksum=True)
    with pq.ParquetFile(segment) as file:
        column = file.metadata.row_group(0).column(table.schema.names.index("offset"))
        place = column.data_page_offset + column.total_compressed_size // 2
    data = bytearray(segment.read_bytes())
    data[place] ^= 4
    segment.write_bytes(data)


SPOILED: tuple[tuple[Callable[[Path], None], str, int, str], ...] = (
    (one_group_a_second_late, "host-0", 0, "before what was recorded before them"),
    (rows_of_another_host, "host-1", 0, "foreign, rows of host-9 under the header of host-1"),
    (times_that_the_header_does_not_tell, "host-0", 1, "its rows are of"),
    (a_bit_of_an_uncompressed_page, "host-1", 1, "truncated or damaged"),
)
"""Each spoils a segment: source, number, and what the audit says of the segment."""


@pytest.fixture(scope="module")
def spoiled(spark: SparkSession, written: tuple[Story, Path], tmp_path_factory: pytest.TempPathFactory) -> Audit:
    def spoil(directory: Path) -> None:
        for change, source, seq, _ in SPOILED:
            change(_segment(directory, source, seq))

    return _audited(spark, written, tmp_path_factory.mktemp("spoiled"), spoil)


@pytest.mark.parametrize(("change", "source", "seq", "text"), SPOILED, ids=[each[0].__name__ for each in SPOILED])
def test_evidence_that_cannot_be_trusted_voids_the_proof_in_one_line(
    spoiled: Audit, change: Callable[[Path], None], source: str, seq: int, text: str
) -> None:
    name = _segment(Path(), source, seq).name
    [flaw] = [flaw for flaw in spoiled.flaws if flaw.startswith(f"{name}: ")]
    assert text in flaw
    assert "\n" not in flaw
    assert not spoiled.ok


def columns_more(segment: Path) -> None:
    _rewritten(segment, lambda table: table.append_column("more", pa.nulls(table.num_rows)))


def a_clock_that_is_a_tenth_ahead(segment: Path) -> None:
    def change(table: Any) -> Any:
        for name in ("time_us", "ready_us"):
            ahead = pc.add(table[name], 100_000)
            table = table.set_column(table.schema.names.index(name), name, ahead)
        return table

    _rewritten(segment, change)


def test_what_is_lawful_is_not_condemned(spark: SparkSession, written: tuple[Story, Path], tmp_path: Path) -> None:
    """A host whose clock is a tenth of a second ahead, and columns that are not known here."""

    def change(directory: Path) -> None:
        for seq in range(2):
            a_clock_that_is_a_tenth_ahead(_segment(directory, "host-0", seq))
            columns_more(_segment(directory, "host-1", seq))

    found = _audited(spark, written, tmp_path, change)
    assert found.ok, (found.kinds, found.flaws)


def test_a_queue_that_is_gone_since_the_last_audit_is_found(spark: SparkSession, tmp_path: Path) -> None:
    story = audit_story.clean(tmp_path / "made")
    assert run(spark, story, tmp_path, state=tmp_path / "state").ok
    gone = next(iter(story.queues))
    del story.queues[gone]
    result = run(spark, story, tmp_path, state=tmp_path / "state", written=True)
    assert ("M", "gone", gone[0], gone[1]) in findings(tmp_path)
    assert result.broken == {"M": 1}
