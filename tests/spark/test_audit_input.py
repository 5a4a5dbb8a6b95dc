"""What voids a proof is named: missing, damaged, foreign and mixed segments, and trails that end abruptly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from bench.spark import synthetic
from emq.runtime import errors
from emq.trail import schema, segments
from emq_spark.audit import segments_read
from emq_spark.audit.options import AuditOptions
from emq_spark.load import ledger, ledger_reading

SHAPE = synthetic.Shape(topics=1, seconds=4)
T0_US = synthetic.T0_S * 1_000_000


@pytest.fixture
def options(tmp_path: Path) -> AuditOptions:
    ledgers, trail = synthetic.write(tmp_path, SHAPE)
    for seq in range(2):
        header = segments.Header("host-9", T0_US, seq, T0_US, T0_US, 0, closed=seq == 1)
        segments.write(trail, header, schema.table("host-9", {}, 0))
    (tmp_path / "other").mkdir()
    return AuditOptions(trails=[trail, tmp_path / "other"], ledgers=[ledgers])


def find(options: AuditOptions) -> segments_read.Input:
    return segments_read.find(options, {}, ())


def test_a_complete_ledger_and_trail_have_no_flaw(options: AuditOptions) -> None:
    found = find(options)
    assert not found.flaws
    assert len(found.ledger) == 1
    assert found.rows == 900 + 900 * 2 + 9 * 2 + 5 * 4


def _trail(options: AuditOptions) -> Path:
    return options.trails[0]


def _ledger(options: AuditOptions) -> Path:
    return options.ledgers[0] / f"run={SHAPE.run}"


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def truncated(options: AuditOptions) -> str:
    _truncate(_trail(options) / f"host-0-{T0_US}-000001.parquet")
    return f"host-0-{T0_US}-000001.parquet: truncated or damaged"


def missing(options: AuditOptions) -> str:
    (_trail(options) / f"host-9-{T0_US}-000000.parquet").unlink()
    return f"host-9-{T0_US}: 1 segment is missing (numbers 0)"


def missing_at_the_end(options: AuditOptions) -> str:
    (_trail(options) / f"host-9-{T0_US}-000001.parquet").unlink()
    return f"host-9-{T0_US}: not closed after segment 0; if it was killed, say so (--crashed host-9)"


def the_same_name_in_another_directory(options: AuditOptions) -> str:
    name = f"host-9-{T0_US}-000001.parquet"
    (options.trails[1] / name).write_bytes((_trail(options) / name).read_bytes())
    return f"{name}: it is there twice, in {_trail(options)} and {options.trails[1]}"


def a_ledger_segment_that_no_part_tells_of(options: AuditOptions) -> str:
    writer = ledger.Writer(options.ledgers[0], SHAPE.run, 9, 0)
    writer.append(1, {"seq": [10**9], "topic": "t", "outcome": "published", "id": ["x"], "sent_us": [1]})
    writer.close()
    return "ledger made-up: 1 segment is there that run.json does not tell of (part-9-0-0)"


def ledger_segment_missing(options: AuditOptions) -> str:
    (_ledger(options) / "part-0-0-0.parquet").unlink()
    return "ledger made-up: partition 0: 1 segment is missing or unreadable (numbers 0)"


def ledger_segment_truncated(options: AuditOptions) -> str:
    _truncate(_ledger(options) / "part-0-0-0.parquet")
    return "ledger made-up: part-0-0-0.parquet: truncated or damaged"


def _with_metadata(path: Path, change: Callable[[dict[bytes, bytes]], object]) -> None:
    with pq.ParquetFile(path) as file:
        metadata, table = dict(file.schema_arrow.metadata), file.read()
    change(metadata)
    pq.write_table(table.replace_schema_metadata(metadata), path, write_page_checksum=True)


def ledger_header_changed(options: AuditOptions) -> str:
    _with_metadata(_ledger(options) / "part-0-0-0.parquet", lambda m: m.update({b"emq.rows": b"1"}))
    return "ledger made-up: part-0-0-0.parquet: truncated or damaged (its header does not match the checksum)"


def ledger_header_without_checksum(options: AuditOptions) -> str:
    _with_metadata(_ledger(options) / "part-0-0-0.parquet", lambda m: m.pop(b"emq.check"))
    return "ledger made-up: part-0-0-0.parquet: truncated or damaged (its header has no checksum"


def ledger_not_ended(options: AuditOptions) -> str:
    (_ledger(options) / "run.json").unlink()
    return "ledger made-up: there is no run.json: the load has not ended, or was cut short"


def ledger_not_complete(options: AuditOptions) -> str:
    ledger.write_run(options.ledgers[0], ledger.Run(SHAPE.run, 1, "", T0_US))
    return "ledger made-up: not complete, the load has not ended in order"


def segment_of_another_run(options: AuditOptions) -> str:
    other = ledger.Writer(options.ledgers[0], "other", 1, 0)
    other.append(1, {"seq": [1], "topic": "t", "outcome": "published", "id": ["x"], "sent_us": [1]})
    other.close()
    place = options.ledgers[0] / "run=other"
    (place / "part-1-0-0.parquet").rename(_ledger(options) / "part-1-0-0.parquet")
    place.rmdir()
    return "ledger made-up: part-1-0-0.parquet: of run other, not made-up: ledgers of different runs are mixed"


def runs_mixed(options: AuditOptions) -> str:
    ledger.write_run(options.ledgers[0], ledger.Run("other", 1, "", T0_US, T0_US, True))
    return "ledgers of different runs are mixed: made-up, other; name those that are meant (--run)"


@pytest.mark.parametrize(
    "spoil",
    [
        truncated,
        missing,
        missing_at_the_end,
        the_same_name_in_another_directory,
        a_ledger_segment_that_no_part_tells_of,
        ledger_segment_missing,
        ledger_segment_truncated,
        ledger_header_changed,
        ledger_header_without_checksum,
        ledger_not_ended,
        ledger_not_complete,
        segment_of_another_run,
        runs_mixed,
    ],
)
def test_what_voids_the_proof_is_named(options: AuditOptions, spoil: Callable[[AuditOptions], str]) -> None:
    expected = spoil(options)
    flaws = find(options).flaws
    assert any(flaw.startswith(expected) for flaw in flaws), flaws


def test_one_of_many_runs_may_be_named(options: AuditOptions) -> None:
    runs_mixed(options)
    for runs in ((SHAPE.run,), ("*",)):
        named = AuditOptions(trails=options.trails, ledgers=options.ledgers, runs=runs)
        assert not find(named).flaws


def test_a_host_that_was_killed_or_still_runs_may_end_abruptly(options: AuditOptions) -> None:
    missing_at_the_end(options)
    for allowed in (
        AuditOptions(options.trails, crashed=frozenset({"host-9"})),
        AuditOptions(options.trails, live=True),
    ):
        found = find(allowed)
        assert not found.flaws
        assert found.unclosed == {"host-9"}


def test_what_was_read_is_not_read_again_and_late_segments_are(options: AuditOptions) -> None:
    late = _trail(options) / f"host-9-{T0_US}-000000.parquet"
    kept = late.read_bytes()
    late.unlink()
    first = find(options)
    assert any("1 segment is missing" in flaw for flaw in first.flaws)
    late.write_bytes(kept)
    second = segments_read.find(options, first.sources, first.ledger_names)
    assert [Path(path).name for path in second.trail] == [late.name]
    assert not second.ledger
    assert not second.flaws


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"trails": [Path("/nowhere")]}, "there is no trail directory '/nowhere'"),
        ({"ledgers": [Path("/nowhere")]}, "there is no ledger directory '/nowhere'"),
        ({"runs": ["other"]}, "there is no run 'other'"),
        ({"crashed": frozenset({"host-7"})}, "there is no source 'host-7'"),
    ],
)
def test_wrong_options_are_named_with_what_there_is(
    options: AuditOptions, change: dict[str, object], text: str
) -> None:
    given = {"trails": options.trails, "ledgers": options.ledgers, **change}
    with pytest.raises(errors.InvalidSettings, match=text):
        find(AuditOptions(**given))  # type: ignore[arg-type]


@pytest.mark.parametrize("change", [{"trails": []}, {"max_skew_s": -1.0}, {"crash_s": float("nan")}])
def test_options_out_of_range_are_refused(options: AuditOptions, change: dict[str, object]) -> None:
    with pytest.raises(errors.InvalidSettings):
        AuditOptions(**{"trails": options.trails, **change})  # type: ignore[arg-type]


def test_a_ledger_takes_what_it_knows_and_names_the_rest(tmp_path: Path) -> None:
    writer = ledger.Writer(tmp_path, "r", 3, 1, rotate_rows=2)
    with pytest.raises(ValueError, match="'colour' is not a column of a ledger"):
        writer.append(1, {"outcome": "published", "colour": "red"})
    with pytest.raises(ValueError, match="'perhaps' must be one of published, merged, unknown, refused"):
        writer.append(1, {"outcome": "perhaps"})
    writer.append(2, {"seq": [0, 1], "topic": "t", "outcome": ["published", "unknown"], "id": ["a", None]})
    writer.append(1, {"seq": [2], "topic": "t", "outcome": "refused", "error": "full"})
    part = writer.close(asked=10, achieved=1.5)
    assert part == ledger.Part(3, 1, 2, 3, 10, 1.5)
    ledger.write_run(tmp_path, ledger.Run("r", 7, "plan", 1, 2, True, (part,)))
    found = ledger_reading.find(tmp_path)
    assert not found.flaws
    assert [segment.rows for segment in found.segments] == [2, 1]
    assert found.runs["r"].seed == 7
