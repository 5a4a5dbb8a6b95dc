"""What a killed host leaves: repeats and a trail cut short are within the bound of a crash, or they are not."""

from __future__ import annotations

import audit_story
import pytest
from audit_story import T0_US, S, Story
from pyspark.sql import SparkSession

from emq.trail import events
from spark.offset_audit import Audit, AuditOptions, audit

KILLED_US = T0_US + 3 * S
TOPIC = "tenant-0001"


@pytest.fixture(scope="module")
def crash(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Audit:
    """Host 0 is killed in the middle: no release, no last segment, the end of its last message unknown."""
    directory = tmp_path_factory.mktemp("crash")
    story = audit_story.clean(directory / "made")
    host = "host-0"
    story.unclosed = {host}
    story.trail = [r for r in story.trail if r["source"] != host or _is_recorded(r)]
    story.sent = [r for r in story.sent if r["topic"] != audit_story.MERGES]
    _forget_what_it_would_have_done(story)
    mine = [g for g in range(5) if story.of(TOPIC, g, events.OWNED, epoch=1, source=host)]
    _repeat(story, mine[0], KILLED_US - 120_000, 500_000)
    _repeat(story, mine[0], KILLED_US - 6 * S // 2, 510_000)
    _unseen(story, mine[1])
    story.write(directory)
    options = AuditOptions(
        [directory / "trail"],
        [directory / "ledger"],
        topics=story.topics(),
        store=story.store,
        crashed=frozenset({host}),
        crash_s=1.0,
    )
    return audit(spark, options)


def _is_recorded(row: audit_story.Row) -> bool:
    """Happened before the kill; the sorted topic is left out of this story."""
    return row["time_us"] < KILLED_US and row["event"] != events.RELEASED and row["topic"] != audit_story.MERGES


def _forget_what_it_would_have_done(story: Story) -> None:
    """Messages of groups that the killed host took over in the second half are still in their queues."""
    known = {row["id"] for row in story.trail}
    waiting = [row for row in story.sent if row["id"] is not None and row["id"] not in known]
    for row in waiting:
        place = row["topic"], row["group"], row["priority"]
        queue = story.queues[place]
        story.queues[place] = queue._replace(watermark=min(queue.watermark, row["offset"]), head=0)
    ended = {r["id"] for r in story.trail if r["event"] in (events.SETTLED, events.DEAD)}
    for row in story.sent:
        if row["id"] is not None and row["id"] in known - ended:
            story.waiting.append((row["topic"], row["id"]))
    story.dead[:] = [(r["topic"], r["id"]) for r in story.trail if r["event"] == events.DEAD]


def _repeat(story: Story, group: int, around_us: int, after_us: int) -> None:
    """The new owner delivers the message that was started last before a time once more."""
    start = [r for r in story.of(TOPIC, group, events.STARTED, attempt=1) if r["time_us"] <= around_us][-1]
    owner = next(r for r in story.of(TOPIC, group, events.OWNED) if r["epoch"] == 2)["source"]
    at = KILLED_US + 2 * S + after_us + 470_000
    again = {**start, "time_us": at, "ready_us": at - 10, "epoch": 2, "source": owner}
    story.trail += [again, audit_story.end(again, at + 10)]


def _unseen(story: Story, group: int) -> None:
    """The end of the last two messages is in no segment, but in the checkpoint."""
    for start in story.of(TOPIC, group, events.STARTED, attempt=1, epoch=1)[-2:]:
        story.trail = [r for r in story.trail if r["id"] != start["id"] or r["event"] == events.STARTED]


def test_a_trail_cut_short_by_a_crash_that_is_named_does_not_void_the_proof(crash: Audit) -> None:
    assert not crash.flaws
    assert any("were killed: host-0" in note for note in crash.notes)


def test_a_repeat_of_what_was_in_flight_is_allowed_and_one_of_what_was_settled_long_before_is_not(crash: Audit) -> None:
    kinds = {(kind.promise, kind.excused): kind for kind in crash.kinds}
    assert set(kinds) == {("D", True), ("D", False)}, crash.kinds
    assert kinds["D", True].count == kinds["D", False].count == 1
    assert "repeated after a crash" in kinds["D", True].examples[0]
    assert "though it was settled long before" in kinds["D", False].examples[0]


def test_what_the_killed_host_finished_unseen_is_not_lost(crash: Audit) -> None:
    assert crash.counts["finished_unseen"] == 2
    assert crash.counts["lost"] == 0
    assert crash.counts["in_store"] > 0
