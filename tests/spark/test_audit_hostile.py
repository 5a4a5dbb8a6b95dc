"""The hostile stories of the proof, each in a topic of its own, in one audit: each has the verdict that it deserves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from worked_off import Store

from emq.topics.model import Kind, Topic, TopicOptions, split
from emq.trail import events, segments
from emq_spark.audit import events as audit_events
from emq_spark.audit import offset_audit
from emq_spark.audit.offset_audit import Audit, AuditOptions, audit
from emq_spark.audit.store import StoreView
from emq_spark.load import ledger
from support import resized_trail
from support.hostile import border_faults, border_lawful, faults, lawful
from support.hostile.border_faults import BORDER_FAULTS
from support.hostile.border_lawful import BORDER_LAWFUL
from support.hostile.faults import VOID, Planter
from support.hostile.told import CONTENT, T0_US, Row, Told
from support.virtual import run

ALONE = {
    faults.a_clock_that_is_a_minute_behind,  # voids the proof, so that nothing is held to be missing any more
}
"""Not to be told beside the others."""

EXPECTED: dict[Planter, str] = {
    **{plant: expected for plant, expected, _ in (*faults.FAULTS, *BORDER_FAULTS) if plant not in ALONE},
    **{plant: "" for plant, _ in (*lawful.LAWFUL, *BORDER_LAWFUL)},
    # What was lost is below the checkpoint, so that progress went past it.
    faults.own_ids_with_a_tilde_and_one_is_lost: "LM",
    faults.dropped_before_it_was_there: "LM",
    faults.one_lost_and_one_settled_twice: "LDM",
    # The audit cannot tell what its store should hold of a queue whose messages nobody is known to have published.
    faults.started_from_before_the_trail_and_never_ended: "",
    border_faults.given_back_and_never_started_again: "LM",
    border_faults.the_very_last_of_a_queue_is_lost: "LM",
    border_faults.recalled_before_it_was_published_and_lost: "LM",
    border_faults.published_after_a_loss_was_noticed_and_lost: "LM",
    border_faults.skipped_as_a_hole_to_its_last_offset: "LM",
    # The store has a dead letter of this id.
    border_faults.expired_before_it_was_published_and_lost: "",
}

SMOOTH = {
    faults.two_hosts_start_a_smooth_second_each: TopicOptions(pacing="smooth", burst=2),
    lawful.a_smooth_group_moves_to_a_clock_that_is_behind: TopicOptions(pacing="smooth", burst=1),
    border_faults.one_more_within_a_second_but_for_a_us: TopicOptions(pacing="smooth", burst=2),
    border_lawful.a_smooth_second_is_over_to_the_us: TopicOptions(pacing="smooth", burst=2),
}
QPS = {
    plant: 10 if given["quotas"] is border_faults.TEN else 0.5
    for plant, given in (*((plant, given) for plant, _, given in BORDER_FAULTS), *BORDER_LAWFUL)
    if "quotas" in given and "bursts" not in given
}
TEN = {
    *SMOOTH,
    faults.three_hosts_start_a_second_each,
    faults.groups_that_no_catalog_has_exceed_the_cap_of_their_topic,
}
OPTIONS = {
    **SMOOTH,
    faults.put_back_after_its_last_attempt: TopicOptions(max_attempts=3),
    border_lawful.dropped_when_the_owner_had_it_already: TopicOptions(max_length=1000, overflow="drop_oldest"),
    border_faults.died_of_what_only_begins_like_an_expiry: TopicOptions(max_attempts=3),
    faults.a_weighted_topic_runs_two_of_a_key: TopicOptions(priority_policy="weighted"),
    faults.dropped_before_it_was_there: TopicOptions(max_length=1000, overflow="drop_oldest"),
}


def name_of(plant: Planter) -> str:
    return plant.__name__.replace("_", "-")


def topic(plant: Planter, told: Told) -> Topic:
    qps = QPS.get(plant, 10 if plant in TEN else 50)
    if any(row["id"] == CONTENT for row in told.rows):
        options = TopicOptions(ordering="none", retry="backoff", max_attempts=3)
        return split(Topic(told.topic, qps=qps, kind=Kind.RANGE_MERGE, slots=1, priorities=(), options=options))
    return split(Topic(told.topic, qps=qps, options=OPTIONS.get(plant, TopicOptions())))


def tell(directory: Path) -> tuple[list[Topic], StoreView]:
    together, store, topics = Told(), Store(), []
    given = {plant: more for plant, _, more in (*faults.FAULTS, *BORDER_FAULTS)}
    given |= dict((*lawful.LAWFUL, *BORDER_LAWFUL))
    for plant in EXPECTED:
        told = Told.of(plant, name_of(plant))
        topics.append(topic(plant, told))
        store.add(told.rows, given[plant].get("still_queued", []))
        together.rows += told.rows
        together.idle |= told.idle
        assert not told.killed
    together.write(directory)
    return topics, store.view


ODD: dict[str, dict[str, Any]] = {
    "no-such-outcome": {"outcome": "perhaps"},
    "no-outcome": {"outcome": None},
    "published-without-an-id": {"id": None},
    "without-a-number": {"seq": None},
}
"""Rows that no load writes, by the topics that they name."""


def load(directory: Path) -> None:
    """A ledger with odd rows, and one that is lawful: a publish that was refused has no id."""
    rows = [{"topic": topic, "seq": n, "id": topic, "outcome": ledger.PUBLISHED} for n, topic in enumerate(ODD)]
    rows = [{**row, **ODD[str(row["topic"])]} for row in rows]
    rows.append({"topic": "refused", "seq": 99, "id": None, "outcome": ledger.REFUSED})
    blank = dict.fromkeys(ledger.SCHEMA.names) | {"run": "odd", "partition": 0, "sent_us": T0_US}
    table = pa.Table.from_pylist([{**blank, **row} for row in rows], schema=ledger.SCHEMA)
    header = {"run": "odd", "partition": 0, "attempt": 0, "n": 0, "rows": len(rows)}
    (directory / "run=odd").mkdir(parents=True)
    told = table.replace_schema_metadata(segments.with_check({name: str(value) for name, value in header.items()}))
    pq.write_table(told, directory / "run=odd" / "part-0-0-0.parquet")
    part = ledger.Part(0, 0, 1, len(rows))
    ledger.write_run(directory, ledger.Run("odd", 1, "odd", T0_US, T0_US, True, (part,)))


@pytest.fixture(scope="module")
def hostile(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Audit, list[Row]]:
    directory = tmp_path_factory.mktemp("hostile")
    topics, store = tell(directory / "trail")
    load(directory / "ledger")
    with pytest.MonkeyPatch.context() as patch:
        topics += run(resized_trail.write(directory / "resized", patch))
    trails = [directory / "trail", directory / "resized"]
    options = AuditOptions(trails, [directory / "ledger"], topics=topics, store=store)
    found = audit(spark, options, directory / "findings")
    return found, pq.read_table(str(directory / "findings")).to_pylist()


def broken(rows: list[Row], plant: Planter, expected: str) -> set[str]:
    mine: list[Any] = [row for row in rows if row["topic"] == name_of(plant)]
    return {row["promise"] for row in mine if not row["excused"] and (row["promise"] != "E" or expected == VOID)}


@pytest.mark.parametrize(("plant", "expected"), EXPECTED.items(), ids=map(name_of, EXPECTED))
def test_a_hostile_story_has_the_verdict_that_it_deserves(
    hostile: tuple[Audit, list[Row]], plant: Planter, expected: str
) -> None:
    _, rows = hostile
    assert broken(rows, plant, expected) == ({"E"} if expected == VOID else set(expected)), [
        row for row in rows if row["topic"] == name_of(plant)
    ]


def test_a_key_that_waits_for_its_former_group_is_not_overtaken_and_one_that_may_start_is(
    hostile: tuple[Audit, list[Row]],
) -> None:
    """In a trail that a host wrote while the keys of two topics moved to other groups."""
    found = [row for row in hostile[1] if row["topic"] in (resized_trail.LAWFUL, resized_trail.FAULTY)]
    assert {(row["promise"], row["topic"], row["group"]) for row in found} == {("P", resized_trail.FAULTY, 1)}, found
    assert sum(row["n"] for row in found) < resized_trail.LOWS, "those before the gate opened overtook nothing"


@pytest.mark.parametrize("topic", [*ODD, "refused"])
def test_an_odd_row_of_a_ledger_proves_nothing(hostile: tuple[Audit, list[Row]], topic: str) -> None:
    found, rows = hostile
    kinds = {row["kind"] for row in rows if row["topic"] == topic and row["promise"] == "E"}
    assert kinds == ({"a row of a ledger that cannot be"} if topic in ODD else set())
    assert any("4 times a row of a ledger that cannot be" in flaw for flaw in found.flaws)


def test_rows_are_read_whatever_a_footer_says_is_in_them(spark: SparkSession, tmp_path: Path) -> None:
    """The highest event of a row group is said to be one below `settled`, so that there could be no such row."""
    told = Told()
    told.own()
    told.message("a", 10)
    told.write(tmp_path)
    path = tmp_path / f"host-{T0_US}-000001.parquet"
    data = path.read_bytes()
    with pq.ParquetFile(path) as file:
        column = file.metadata.row_group(0).column(0)
        assert column.statistics.max == events.STARTED
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    forged = data[:footer] + data[footer:].replace(b"started", b"released"[:7])
    path.write_bytes(forged)
    with pq.ParquetFile(path) as file:
        assert file.metadata.row_group(0).column(0).statistics.max == "release"
    before = offset_audit._fit(spark, 1)
    try:
        settled = audit_events.of_trail(spark, [str(path)]).where(F.col("event") == events.SETTLED)
        assert settled.count() == 1
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
