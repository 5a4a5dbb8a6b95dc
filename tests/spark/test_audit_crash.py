"""What a killed host leaves: repeats and a trail cut short are within the bound of a crash, or they are not."""

from __future__ import annotations

from typing import Any

import audit_story
import pytest
from audit_story import T0_US, Row, S, Story
from pyspark.sql import SparkSession

from emq.trail import events
from emq_spark.audit import keys
from emq_spark.audit.findings import Kind
from emq_spark.audit.offset_audit import Audit, AuditOptions, audit

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
    _repeat(story, TOPIC, mine[0], KILLED_US - 120_000)
    _repeat(story, TOPIC, mine[0], KILLED_US - 5 * S // 2, 510_000)
    _unseen(story, mine[1])
    _gone_after_the_crash(story, mine[1])
    _vanished(story, "tenant-0007", mine[0])
    _dead_again(story, "tenant-0003", mine[0])
    _failed_before_the_crash(story, "tenant-0005", mine[0], is_seen=True)
    _failed_before_the_crash(story, "tenant-0005", mine[1], is_seen=False)
    _lost_by_a_host_that_lives_on(story, "tenant-0006", mine[0])
    _passed_by_a_higher_priority(story, "tenant-0002")
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


def _is_recorded(row: Row) -> bool:
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


def _last_before(story: Story, topic: str, group: int, time_us: int) -> tuple[Row, Row]:
    """Start and end of the message that was started last, for the first time, before a time."""
    start = [r for r in story.of(topic, group, events.STARTED, attempt=1) if r["time_us"] <= time_us][-1]
    [ended] = [r for r in story.of(topic, group, id=start["id"], attempt=1) if r is not start]
    return start, ended


def _redeliver(story: Story, start: Row, after_us: int, outcome: str = events.SETTLED, **fields: Any) -> None:
    """The new owner delivers a message once more."""
    owned = next(r for r in story.of(start["topic"], start["group"], events.OWNED) if r["epoch"] == 2)
    at = KILLED_US + 2 * S + 470_000 + after_us
    again = {**start, "time_us": at, "ready_us": at - 10, "epoch": 2, "source": owned["source"], **fields}
    story.trail += [again, audit_story.end(again, at + 10, outcome)]


def _repeat(story: Story, topic: str, group: int, before_us: int, after_us: int = 500_000) -> None:
    start, _ = _last_before(story, topic, group, before_us)
    _redeliver(story, start, after_us)


def _dead_again(story: Story, topic: str, group: int) -> None:
    """It was rejected and died; its offset was not checkpointed, so it came again and was rejected again."""
    start, ended = _last_before(story, topic, group, KILLED_US - 120_000)
    ended |= {"event": events.DEAD, "reason": f"{events.REJECTED}no such address"}
    _redeliver(story, start, 500_000, events.DEAD)
    story.trail[-1]["reason"] = ended["reason"]
    story.dead.append((topic, start["id"]))


def _failed_before_the_crash(story: Story, topic: str, group: int, *, is_seen: bool) -> None:
    """It failed and went to the lane, its offset was not checkpointed: it comes from both, and is settled twice."""
    start, ended = _last_before(story, topic, group, KILLED_US - 120_000)
    ended["event"] = events.RETRIED
    _redeliver(story, start, 500_000)
    _redeliver(story, start, 505_000, attempt=2, offset=-1)
    if not is_seen:
        story.trail = [row for row in story.trail if row is not start and row is not ended]


def _lost_by_a_host_that_lives_on(story: Story, topic: str, group: int) -> None:
    """Host 1 is cut off from a group that host 2 takes over, and works on for others."""
    [released] = story.of(topic, group, events.RELEASED, epoch=1)
    [owned] = story.of(topic, group, events.OWNED, epoch=2)
    assert released["source"] == "host-1"
    story.trail.remove(released)
    owned.update(source="host-2", time_us=KILLED_US + S)
    _repeat(story, topic, group, KILLED_US - 120_000)


def _passed_by_a_higher_priority(story: Story, topic: str) -> None:
    """The killed host was at a message; the new owner first starts one of its key with a higher priority."""
    group = next(g for g in range(5) if story.of(topic, g, events.OWNED, epoch=1, source="host-0"))
    start = [r for r in story.of(topic, group, events.STARTED, attempt=1, epoch=1) if r["priority"] == 2][-1]
    story.trail = [r for r in story.trail if r["id"] != start["id"] or r is start]
    _redeliver(story, start, 900_000)
    [again] = [r for r in story.of(topic, group, events.STARTED, id=start["id"]) if r is not start]
    higher = [r for r in story.of(topic, group, events.STARTED, epoch=2) if r["time_us"] < again["time_us"]]
    first = next(r for r in higher if r["priority"] == 0 and r["time_us"] > KILLED_US)
    for row in (*story.trail, *story.sent):
        if row["id"] == first["id"]:
            row["key"] = start["key"]
    assert start["key"] is not None


def _gone_after_the_crash(story: Story, group: int) -> None:
    """The new owner skips one that was published long after it took over."""
    [start] = [r for r in story.of(TOPIC, group, events.STARTED, epoch=2, attempt=1) if r["time_us"] == T0_US + 5 * S]
    story.undelivered(start["id"])


VANISHED = 5


def _vanished(story: Story, topic: str, group: int) -> None:
    """Deliveries of the first second, which the trail had long told of when its host was killed."""
    for start in story.of(topic, group, events.STARTED, attempt=1, epoch=1)[10 : 10 + VANISHED]:
        story.undelivered(start["id"])


def _unseen(story: Story, group: int) -> None:
    """The end of the last two messages is in no segment, but in the checkpoint."""
    for start in story.of(TOPIC, group, events.STARTED, attempt=1, epoch=1)[-2:]:
        story.trail = [r for r in story.trail if r["id"] != start["id"] or r["event"] == events.STARTED]


def test_a_trail_cut_short_by_a_crash_that_is_named_does_not_void_the_proof(crash: Audit) -> None:
    assert not crash.flaws
    assert any("were killed: host-0" in note for note in crash.notes)


def _kinds(crash: Audit) -> dict[tuple[str, bool], Kind]:
    return {(kind.promise, kind.excused): kind for kind in crash.kinds}


def test_a_repeat_of_what_was_in_flight_is_allowed_and_one_of_what_was_settled_long_before_is_not(crash: Audit) -> None:
    kinds = _kinds(crash)
    assert kinds["D", True].count == 4, kinds["D", True].examples
    assert all("repeated after a crash" in text for text in kinds["D", True].examples)
    assert kinds["D", False].count == 1, kinds["D", False].examples
    assert "though it was settled long before" in kinds["D", False].examples[0]


def test_a_dead_letter_that_died_again_after_a_crash_is_there_once(crash: Audit) -> None:
    kinds = _kinds(crash)
    assert kinds["X", True].count == 1
    assert ("X", False) not in kinds


def test_a_higher_priority_may_pass_the_message_of_its_key_that_the_killed_host_was_at(crash: Audit) -> None:
    assert ("K", False) not in _kinds(crash)


def test_what_the_killed_host_finished_unseen_is_not_lost(crash: Audit) -> None:
    assert crash.counts["finished_unseen"] == 2
    assert crash.counts["in_store"] > 0
    assert crash.believed.startswith("2 of 10,8")
    assert crash.believed.endswith("(below 1 %) believed to checkpoints")


def test_what_was_published_after_the_takeover_or_lies_below_what_was_started_was_not_finished_by_the_killed_host(
    crash: Audit,
) -> None:
    kinds = _kinds(crash)
    assert crash.counts["lost"] == kinds["L", False].count == kinds["M", False].count == 1 + VANISHED
    assert set(kinds) == {("D", True), ("D", False), ("X", True), ("L", False), ("M", False)}


def test_a_failure_that_a_killed_host_had_no_answer_for_ends_its_delivery_in_its_slot(spark: SparkSession) -> None:
    """It may have failed in the last second of the trail; the end of an earlier delivery would be in the trail."""
    starts = [("a", T0_US), ("b", T0_US + 10), ("c", T0_US + 2 * S), ("d", T0_US + 2 * S + 10)]
    rows = [(events.STARTED, "sorted", "slot 0", name, at_us, "host", 1, 0, 0, None, 1, None) for name, at_us in starts]
    schema = "event string, topic string, key string, id string, time_us long, source string, attempt int, "
    frame = spark.createDataFrame(
        rows, schema + "`group` int, priority int, offset long, epoch long, published_us long"
    )
    cut_short = [("host", T0_US, T0_US + 2 * S + 20)]
    found = {}
    for failures_run in (True, False):
        runs = keys.deliveries(frame, cut_short, failures_run=failures_run)
        found[failures_run] = {row["id"] for row in keys.overlaps(keys.followed(runs, 0)).collect()}
    assert found == {True: {"b", "c", "d"}, False: {"b"}}
