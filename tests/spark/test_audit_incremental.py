"""An audit that goes on from the last one finds what one audit of everything finds, also when segments come late."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import audit_story
import msgspec
import pytest
from audit_story import T0_US, Row, S, Story
from pyspark.sql import SparkSession

from emq.runtime import errors
from emq.topics.model import Topic
from emq.trail import events
from emq_spark.audit import offsets, state
from emq_spark.audit.offset_audit import Audit, AuditOptions, audit
from emq_spark.audit.store import QueueView, StoreView

CUT_US = T0_US + 2 * S + 500_000


def early(row: Row) -> bool:
    return bool(row["time_us"] < CUT_US)


def late(row: Row) -> bool:
    return not early(row)


def run(spark: SparkSession, story: Story, directory: Path, **options: Any) -> Audit:
    given = {"topics": story.topics(), "state": directory / "state", "carried_s": 1.0, **options}
    return audit(spark, AuditOptions([directory / "trail"], [directory / "ledger"], **given))


def lowered(story: Story) -> list[Topic]:
    """The catalog after a quota was lowered; what was started before that is none too many."""
    return [msgspec.structs.replace(t, qps=200) if t.name == "tenant-0006" else t for t in story.topics()]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """With a second over its cap and one settled twice, on both sides of the cut."""
    made = audit_story.clean(tmp_path_factory.mktemp("made"))
    for i in range(260):
        made.extra("tenant-0001", 2, f"over-{i}", CUT_US + 485_000 + i)
    starts = made.of("tenant-0003", 1, events.STARTED, attempt=1)
    start = next(row for row in starts if row["time_us"] == T0_US + S + 44 * 20_000)
    owner = next(r for r in made.of("tenant-0003", 1, events.OWNED) if r["epoch"] == 2)["source"]
    at = T0_US + 4 * S + 990_000
    again = {**start, "time_us": at, "ready_us": at - 10, "epoch": 2, "source": owner}
    made.trail += [again, audit_story.end(again, at + 10)]
    return made


def test_audits_in_steps_find_what_one_of_everything_finds(spark: SparkSession, story: Story, tmp_path: Path) -> None:
    story.unclosed = {"host-0", "host-1"}
    story.write(tmp_path, early)
    story.unclosed = set()
    story.write(tmp_path, late, seq=1)
    whole = run(spark, story, tmp_path)
    steps = tmp_path / "steps"
    story.unclosed = {"host-0", "host-1"}
    story.write(steps, early)
    asked_before = StoreView(at_us=T0_US - 2 * S)
    first = run(spark, story, steps, live=True, runs=["*"], store=asked_before)
    assert first.ok, (first.kinds, first.flaws)
    assert first.counts["in_store"] > 0
    story.unclosed = set()
    story.write(steps, late, seq=1)
    second = run(spark, story, steps, topics=lowered(story))
    assert not whole.flaws
    assert not second.flaws
    assert second.kinds == whole.kinds
    assert second.broken == {"D": 1, "Q": 1}
    assert {**second.counts} == {**whole.counts}
    third = run(spark, story, steps, topics=lowered(story))
    assert third.ok
    assert third.violations == second.violations
    assert {k: v for k, v in third.counts.items() if k != "surplus"} == {
        k: v for k, v in second.counts.items() if k != "surplus"
    }


def test_a_state_that_cannot_be_read_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / state.FILE).write_text('{"version": "new"}')
    with pytest.raises(errors.InvalidSettings, match="cannot be read"):
        state.State(spark, tmp_path)


def test_a_queue_that_was_made_again_is_named_although_it_has_grown_past_the_last_audit() -> None:
    was = QueueView("t", 0, 1, watermark=7, epoch=2, head=7, tail=9, incarnation=4)
    grown = was._replace(watermark=70, head=70, tail=90)
    assert offsets.regressed([grown], [was], None) == []
    [found] = offsets.regressed([grown._replace(incarnation=5)], [was], None)
    assert (found["promise"], found["kind"], found["offset"]) == ("M", "made again", 70)
    assert "was lost with its store and made again" in found["text"]


def test_a_state_without_incarnations_is_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / state.FILE).write_text(json.dumps({"version": state.VERSION, "queues": [["t", 0, 1, 7, 2, 7, 9, []]]}))
    [was] = state.saved_in(tmp_path).queues
    assert offsets.regressed([was._replace(incarnation=5)], [was], None) == []
