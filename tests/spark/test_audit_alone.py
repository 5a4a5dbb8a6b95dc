"""Faults that a single slot, queue, dead letter or segment tells of: planted in a clean run, and found by the audit.

`tests/unit/test_histories.py` plants those of a single message, `test_audit_hostile.py` those of owners.
"""

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

Planter = Callable[[Story], None]


def passed_over_by_the_former_owner(story: Story) -> None:
    """The next owner starts a message below the last one that the former owner started before it let go."""
    topic, group = "tenant-0005", 0
    former, later = (story.of(topic, group, events.STARTED, epoch=epoch, priority=2, attempt=1) for epoch in (1, 2))
    later_us = T0_US + 3 * S + 985_000 - former[-3]["time_us"]
    for row in story.of(topic, group, id=former[-3]["id"]):
        row |= {"source": later[0]["source"], "time_us": row["time_us"] + later_us}
        row["epoch"] = row["epoch"] and later[0]["epoch"]


def two_of_a_slot_at_a_time(story: Story) -> None:
    first = story.of(audit_story.MERGES, 0, events.SETTLED)[0]
    first["time_us"] += 250_000


def two_at_one_offset(story: Story) -> None:
    first, second = [row for row in story.sent if (row["topic"], row["group"]) == ("tenant-0007", 0)][:2]
    second |= {"offset": first["offset"], "priority": first["priority"]}
    for row in story.of("tenant-0007", 0, id=second["id"]):
        row |= {"offset": first["offset"] if row["offset"] != -1 else -1, "priority": first["priority"]}


def dead_again_after_a_replay_and_its_letter_is_gone(story: Story) -> None:
    """It was published, and died for the first time, before the trail began."""
    story.extra("tenant-0007", 1, "an old one", T0_US + S + 985_000)
    start, end = story.trail[-2:]
    story.sent.pop()
    end |= {"event": events.DEAD, "reason": f"{events.REJECTED}no"}
    story.trail.append({**end, "event": events.REPLAYED, "time_us": start["time_us"] - 10_000, "source": "cli"})


def delivered_and_among_the_dead(story: Story) -> None:
    settled = story.of("tenant-0004", 3, events.SETTLED)[0]
    story.dead.append(("tenant-0004", settled["id"]))


def a_dead_letter_twice(story: Story) -> None:
    dead = story.of("tenant-0005", 4, events.DEAD)[0]
    story.dead.append((dead["topic"], dead["id"]))


def a_dead_letter_that_nobody_published(story: Story) -> None:
    story.dead.append(("tenant-0006", "from nowhere"))


def dropped_although_its_topic_refuses(story: Story) -> None:
    like = story.of("tenant-0006", 4, events.STARTED)[0]
    gone = {"event": events.DROPPED, "id": None, "offset": 900, "until": 903, "attempt": None, "reason": "max_length"}
    story.trail.append({**like, **gone})


def a_number_twice_in_the_ledger(story: Story) -> None:
    story.sent[1]["seq"] = story.sent[0]["seq"]


PLANTED: tuple[tuple[Planter, str, str, str | None, int | None], ...] = (
    (passed_over_by_the_former_owner, "O", "two owners", "tenant-0005", 0),
    (two_of_a_slot_at_a_time, "K", "overlap", audit_story.MERGES, 0),
    (two_at_one_offset, "M", "two at one offset", "tenant-0007", 0),
    (dead_again_after_a_replay_and_its_letter_is_gone, "X", "not among the dead", "tenant-0007", 1),
    (delivered_and_among_the_dead, "X", "delivered and among the dead", "tenant-0004", 3),
    (a_dead_letter_twice, "X", "several dead letters", "tenant-0005", 4),
    (a_dead_letter_that_nobody_published, "X", "unknown dead letter", "tenant-0006", None),
    (dropped_although_its_topic_refuses, "L", "dropped", "tenant-0006", 4),
    (a_number_twice_in_the_ledger, "E", "a number twice", None, None),
)


@pytest.fixture(scope="module")
def planted(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Audit, Path]:
    directory = tmp_path_factory.mktemp("planted")
    story = audit_story.clean(directory / "made")
    for planter, *_ in PLANTED:
        planter(story)
    return run(spark, story, directory), directory


@pytest.mark.parametrize(
    ("planter", "promise", "kind", "topic", "group"), PLANTED, ids=[f"{p[1]}-{p[0].__name__}" for p in PLANTED]
)
def test_a_planted_fault_is_found(
    planted: tuple[Audit, Path], planter: Planter, promise: str, kind: str, topic: str, group: int | None
) -> None:
    assert (promise, kind, topic, group) in findings(planted[1])


def test_nothing_is_found_but_what_was_planted(planted: tuple[Audit, Path]) -> None:
    result, directory = planted
    expected = {(promise, kind, topic, group) for _, promise, kind, topic, group in PLANTED}
    assert findings(directory) == expected
    assert len(result.flaws) == 1, result.flaws


# ---------------------------------------------------------------------------------------------------------- segments


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
