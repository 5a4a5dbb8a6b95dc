"""A trail with a segment missing, damaged, foreign or misdated proves nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from emq.runtime import errors
from emq.trail import segments
from emq_proof.proof import prove
from support.trail_story import MS, T0_US, Story, host_segment, in_segments, reasons


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return in_segments(Story(tmp_path))


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_missing_segment_voids(ledger: Path, number: int) -> None:
    host_segment(ledger, number).unlink()
    assert reasons(ledger) == (f"host-{T0_US}: 1 segment is missing (numbers {number})",)


def test_an_unclosed_source_voids(ledger: Path) -> None:
    host_segment(ledger, 3).unlink()
    assert reasons(ledger) == (f"host-{T0_US}: not closed after segment 2, the source crashed or still runs",)


@pytest.mark.parametrize("keep", [0, 3, 500])
def test_a_truncated_segment_voids_and_is_named(ledger: Path, keep: int) -> None:
    path = host_segment(ledger, 1)
    path.write_bytes(path.read_bytes()[:keep])
    first, second = reasons(ledger)
    assert first.startswith(f"{path.name}: truncated or damaged")
    assert second == f"host-{T0_US}: 1 segment is missing (numbers 1)"


def test_files_that_readers_hide_and_files_under_way_are_passed_over(ledger: Path) -> None:
    for name in ("_SUCCESS", ".crc", host_segment(ledger, 4).name + ".tmp"):
        (ledger / name).write_bytes(b"")
    assert prove(ledger).ok


def test_a_segment_of_a_later_version_voids(ledger: Path) -> None:
    header, table = segments._read_segment(host_segment(ledger, 2))
    segments.write(ledger, header._replace(version=2), table)
    assert reasons(ledger)[0].endswith("of schema version 2, this program reads 1")


def test_an_empty_directory_proves_nothing(tmp_path: Path) -> None:
    assert reasons(tmp_path) == ("there is no readable segment",)


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidSettings, match=r"no trail directory .*nowhere"):
        prove(tmp_path / "nowhere")


def _changed(path: Path, change: Callable[[Any], Any]) -> None:
    with pq.ParquetFile(path) as file:
        header, table = segments.Header.decode(file.schema_arrow.metadata), file.read()
    segments.write(path.parent, header, change(table))


def test_a_number_that_has_changed_and_can_be_read_voids(ledger: Path) -> None:
    path = host_segment(ledger, 2)
    with pq.ParquetFile(path) as file:
        header, table = segments.Header.decode(file.schema_arrow.metadata), file.read()
    plain = table.replace_schema_metadata(header.encode())
    pq.write_table(plain, path, compression="none", use_dictionary=False, write_page_checksum=True)
    assert prove(ledger).ok
    with pq.ParquetFile(path) as file:
        column = file.metadata.row_group(0).column(table.schema.names.index("offset"))
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + column.total_compressed_size - 8] ^= 1  # of the last number, the lowest bit
    path.write_bytes(data)
    with pq.ParquetFile(path) as file:
        assert file.read(columns=["offset"])["offset"][-1].as_py() == table["offset"][-1].as_py() ^ 1
    assert reasons(ledger)[0].startswith(f"{path.name}: truncated or damaged")


def test_columns_more_are_passed_over(ledger: Path) -> None:
    _changed(host_segment(ledger, 2), lambda table: table.append_column("more", pa.nulls(table.num_rows)))
    assert prove(ledger).ok


def test_rows_of_another_source_under_this_one_s_header_void(ledger: Path) -> None:
    def change(table: Any) -> Any:
        i = table.schema.names.index("source")
        return table.set_column(i, "source", pa.array(["stranger"] * table.num_rows))

    _changed(host_segment(ledger, 2), change)
    assert reasons(ledger)[0].endswith("foreign, rows of stranger under the header of host")


def test_some_rows_that_are_dated_a_second_late_void(ledger: Path) -> None:
    def change(table: Any) -> Any:
        i = table.schema.names.index("time_us")
        late = pc.if_else(pc.equal(table["id"], "m13"), pc.add(table["time_us"], 1_000_000), table["time_us"])
        return table.set_column(i, "time_us", late)

    path = host_segment(ledger, 2)
    with pq.ParquetFile(path) as file:
        header, table = segments.Header.decode(file.schema_arrow.metadata), file.read()
    assert "m13" in table["id"].to_pylist()
    last_us = pc.max(change(table)["time_us"]).as_py()
    segments.write(ledger, header._replace(last_us=last_us), change(table))
    assert "before what was recorded before them" in reasons(ledger)[0]


def test_a_segment_is_held_against_all_earlier_ones_of_its_run() -> None:
    def turn(seq: int, first_ms: int, last_ms: int, source: str = "host") -> tuple[segments.Header, tuple[int, int]]:
        return segments.Header(source, T0_US, seq, 0, 0), (first_ms * MS, last_ms * MS)

    before, after = [turn(1, 0, 1000), turn(2, 910, 920)], turn(3, 830, 840)
    assert not segments.out_of_turn([*before, turn(3, 910, 940), turn(3, 830, 840, "other")])
    assert segments.out_of_turn([after, *before]) == [
        f"{after[0].name}: its events are dated before those of earlier segments of its run"
    ]
