"""The audit passes a clean run, and finds every fault that is planted in one: each where it is, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import audit_oddities
import audit_story
import pyarrow.parquet as pq
import pytest
from audit_story import T0_US, S, Story
from pyspark.sql import SparkSession

from emq.storage.message import slot_id
from emq.trail import events
from emq_spark.audit import report
from emq_spark.audit.findings import NAMES
from emq_spark.audit.offset_audit import Audit, AuditOptions, audit

Planter = Callable[[Story], None]


def run(spark: SparkSession, story: Story, directory: Path, written: bool = False, **options: Any) -> Audit:
    """Audit a story, which is `written` into the directory already or is so now."""
    if not written:
        story.write(directory)
    trails, ledgers = [directory / "trail"], [directory / "ledger"]
    given = {"topics": story.topics(), "store": story.store, **options}
    return audit(spark, AuditOptions(trails=trails, ledgers=ledgers, **given), directory / "findings")


def findings(directory: Path) -> set[tuple[str, str, str, int | None]]:
    """What was found, and where: promise, kind, topic, group."""
    rows = pq.read_table(str(directory / "findings")).to_pylist()
    return {(row["promise"], row["kind"], row["topic"], row["group"]) for row in rows if not row["excused"]}


# ------------------------------------------------------------------------------------------------------ clean ledgers


@pytest.fixture(scope="module")
def clean(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Audit:
    directory = tmp_path_factory.mktemp("clean")
    story = audit_story.clean(directory / "made")
    audit_oddities.add(story)
    topics = [*story.topics(), audit_oddities.NOW]
    return run(spark, story, directory, topics=topics, earlier=[audit_oddities.BEFORE])


def test_a_clean_run_is_proved_whatever_odd_happens_in_it(clean: Audit) -> None:
    assert clean.ok, (clean.kinds, clean.flaws)
    assert clean.exit_status == 0
    assert not clean.unjudged
    [kind] = clean.kinds
    assert (kind.promise, kind.kind, kind.count, kind.excused) == ("D", "of unknown publishes", 1, True)


def test_every_message_is_accounted_for_and_merged_and_unknown_ones_are_neither_lost_nor_extra(clean: Audit) -> None:
    counts = clean.counts
    assert counts["published"] == audit_story.SHAPE.messages + 20 + audit_oddities.PUBLISHED
    ended = counts["delivered"] - counts["not_published_here"] + counts["dead"] + counts["dropped"]
    assert counts["published"] == ended + counts["lost_by_store"]
    assert counts["lost_by_store"] == 1
    assert any("1 message was lost by a store" in note for note in clean.notes)
    assert (counts["merged"], counts["publishes_unknown"], counts["not_published_here"]) == (20, 12, 5)
    assert counts["lost"] == counts["in_store"] == 0
    assert any("5 delivered messages are in no ledger" in note and "12 publishes" in note for note in clean.notes)


def test_the_report_shows_each_promise_and_the_answer_fits_json(clean: Audit) -> None:
    page = report.render(clean)
    for letter, name in NAMES.items():
        assert f"<b>{letter}</b><span>{name.replace('&', '&amp;')}</span><i>kept</i>" in page
    assert page.count("<svg") >= 4 + report.SMALL // 2
    assert "http" not in page.replace("http-equiv", "")
    told = json.loads(json.dumps(clean.to_dict()))
    assert told["ok"] is True
    assert {told["promises"][letter]["verdict"] for letter in NAMES} == {"kept"}


# ------------------------------------------------------------------------------------------------------------- faults


def _nth(story: Story, topic: str, group: int, second: int, place: int) -> dict[str, Any]:
    """The first start of the message that has this place in this second."""
    at = T0_US + second * S + place * 20_000
    [row] = [r for r in story.of(topic, group, events.STARTED, attempt=1) if r["time_us"] == at]
    return row


def _retried(story: Story, topic: str, group: int) -> dict[str, Any]:
    """A message that was started a second time and settled."""
    again = story.of(topic, group, events.SETTLED, attempt=2)
    return again[0]


def beyond_the_tail(story: Story) -> None:
    start = _nth(story, "tenant-0000", 0, 5, 44)
    story.undelivered(start["id"])
    queue = story.queues["tenant-0000", 0, 2]
    last = start["offset"]
    story.queues["tenant-0000", 0, 2] = queue._replace(watermark=last, head=last, tail=last)


def gone_from_its_lane(story: Story) -> None:
    message = _retried(story, "tenant-0001", 0)["id"]
    story.trail = [row for row in story.trail if row["id"] != message or row["attempt"] == 1]


def settled_again_after_a_clean_release(story: Story) -> None:
    start = _nth(story, "tenant-0001", 1, 1, 44)
    owner = next(r for r in story.of("tenant-0001", 1, events.OWNED) if r["epoch"] == 2)["source"]
    at = T0_US + 4 * S + 990_000
    again = {**start, "time_us": at, "ready_us": at - 10, "epoch": 2, "source": owner}
    story.trail += [again, audit_story.end(again, at + 10)]


def settled_thrice_on_two_publishes(story: Story) -> None:
    audit_story.deliver_merged(story, 3, T0_US + 3 * S)


def a_content_published_and_never_delivered(story: Story) -> None:
    audit_story.publish_merged(story, 4, T0_US + 5 * S)


def an_occurrence_settled_twice(story: Story) -> None:
    """Its publish is recorded twice, as after a crash; that allows for no second settle."""
    at = T0_US + 2 * S + 990_000
    story.extra("tenant-0005", 3, "daily.1", at)
    [start] = story.of("tenant-0005", 3, events.STARTED, id="daily.1")
    blank = {"attempt": None, "epoch": None, "ready_us": None, "offset": None}
    publish = {**start, "event": events.PUBLISHED, **blank}
    again = {**start, "time_us": at + 2_000, "ready_us": at + 1_500}
    story.trail += [publish, {**publish, "time_us": at + 1}, again, audit_story.end(again, at + 2_500)]


def one_second_over_its_cap(story: Story) -> None:
    for i in range(260):  # more than the 250 of the topic in the clock of any host
        story.extra("tenant-0001", 2, f"over-{i}", T0_US + 2 * S + 985_000 + i)


def all_slots_in_one_second(story: Story) -> None:
    """Together they start twice the topic's quota."""
    audit_story.start_in_every_slot(story, T0_US + 2 * S + 100_000)


def a_high_one_waits_in_the_store(story: Story) -> None:
    """For ten seconds, while its owner starts a lower one each second."""
    start = {**story.of("tenant-0003", 4, events.STARTED)[0], "group": 9, "key": None, "epoch": 1, "attempt": 1}
    owned = {"event": events.OWNED, "time_us": T0_US, "id": None, "priority": None, "offset": None, "attempt": None}
    story.trail.append({**start, **owned})
    times = [("high", 0, T0_US + 10_600_000), *((f"low-{i}", 1, T0_US + i * S + 100) for i in range(1, 11))]
    for i, (name, priority, at_us) in enumerate(times):
        mine = {"id": name, "priority": priority, "offset": i, "time_us": at_us, "published_us": T0_US}
        story.trail.append({**start, **mine, "ready_us": at_us - 50})
        story.trail.append(audit_story.end(story.trail[-1], at_us + 50))
        like = story.sent[0] | {"seq": audit_story.MADE_UP, "topic": "tenant-0003", "group": 9, "key": None}
        story.sent.append(
            {**like, "id": name, "priority": priority, "offset": i, "sent_us": T0_US, "answered_us": T0_US}
        )


def two_owners_at_a_time(story: Story) -> None:
    [owned] = story.of("tenant-0005", 1, events.OWNED, epoch=2)
    owned["time_us"] -= 2 * S


def a_start_under_an_old_epoch(story: Story) -> None:
    [old] = story.of("tenant-0005", 2, events.OWNED, epoch=1)
    start = _nth(story, "tenant-0005", 2, 4, 20)
    for row in story.of("tenant-0005", 2, id=start["id"]):
        row["source"] = old["source"]
    start["epoch"] = 1


def put_back_instead_of_dead(story: Story) -> None:
    dead = story.of("tenant-0006", 3, events.DEAD)[0]
    dead["event"] = events.RETRIED
    story.dead.remove((dead["topic"], dead["id"]))
    story.waiting.append((dead["topic"], dead["id"]))


def missing_among_the_dead(story: Story) -> None:
    dead = story.of("tenant-0004", 2, events.DEAD)[0]
    story.dead.remove((dead["topic"], dead["id"]))


def a_message_skipped_as_a_hole(story: Story) -> None:
    start = _nth(story, "tenant-0007", 2, 2, 10)
    row = {**start, "event": events.SKIPPED, "id": None, "until": start["offset"] + 1, "attempt": None}
    story.undelivered(start["id"])
    story.trail.append(row)


def a_checkpoint_past_an_unfinished_message(story: Story) -> None:
    start = _nth(story, "tenant-0007", 3, 2, 10)
    story.trail = [r for r in story.trail if r["id"] != start["id"] or r["event"] == events.STARTED]


def a_checkpoint_past_the_tail(story: Story) -> None:
    queue = story.queues["tenant-0004", 0, 0]
    story.queues["tenant-0004", 0, 0] = queue._replace(watermark=queue.tail + 5)


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
    (beyond_the_tail, "L", "lost: beyond the tail", "tenant-0000", 0),
    (gone_from_its_lane, "L", "lost: nowhere", "tenant-0001", 0),
    (settled_again_after_a_clean_release, "D", "duplicate", "tenant-0001", 1),
    (settled_thrice_on_two_publishes, "D", "duplicate", audit_story.MERGES, 0),
    (a_content_published_and_never_delivered, "L", "lost: nowhere", audit_story.MERGES, 0),
    (an_occurrence_settled_twice, "D", "duplicate", "tenant-0005", 3),
    (an_occurrence_settled_twice, "D", "started twice", "tenant-0005", 3),
    (one_second_over_its_cap, "Q", "aligned second", "tenant-0001", None),
    (all_slots_in_one_second, "Q", "aligned second", audit_story.SLOTS, None),
    (a_high_one_waits_in_the_store, "P", "inversion", "tenant-0003", 9),
    (two_owners_at_a_time, "O", "two owners", "tenant-0005", 1),
    (a_start_under_an_old_epoch, "O", "two owners", "tenant-0005", 2),
    (a_start_under_an_old_epoch, "O", "not its owner", "tenant-0005", 2),
    (put_back_instead_of_dead, "X", "never dead", "tenant-0006", 3),
    (missing_among_the_dead, "X", "not among the dead", "tenant-0004", 2),
    (a_message_skipped_as_a_hole, "M", "skipped", "tenant-0007", 2),
    (a_message_skipped_as_a_hole, "L", "lost: skipped", "tenant-0007", 2),
    (a_checkpoint_past_an_unfinished_message, "M", "past what is finished", "tenant-0007", 3),
    (a_checkpoint_past_an_unfinished_message, "L", "lost: passed", "tenant-0007", 3),
    (a_checkpoint_past_the_tail, "M", "past the tail", "tenant-0004", 0),
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
    for planter in dict.fromkeys(planter for planter, *_ in PLANTED):
        planter(story)
    return run(spark, story, directory), directory


@pytest.mark.parametrize(
    ("planter", "promise", "kind", "topic", "group"), PLANTED, ids=[f"{p[1]}-{p[0].__name__}" for p in PLANTED]
)
def test_a_planted_fault_is_found(
    planted: tuple[Audit, Path], planter: Planter, promise: str, kind: str, topic: str | None, group: int | None
) -> None:
    assert (promise, kind, topic, group) in findings(planted[1])


def test_nothing_is_found_but_what_was_planted(planted: tuple[Audit, Path]) -> None:
    result, directory = planted
    assert findings(directory) == {(promise, kind, topic, group) for _, promise, kind, topic, group in PLANTED}
    assert set(result.broken) == set("LDQPKOMX")
    assert len(result.flaws) == 1, result.flaws


def test_a_finding_names_the_message_and_its_place(planted: tuple[Audit, Path]) -> None:
    rows = pq.read_table(str(planted[1] / "findings")).to_pylist()
    [lost] = [row for row in rows if row["kind"] == "lost: beyond the tail"]
    assert lost["id"] in lost["text"]
    assert (lost["offset"], lost["priority"]) == (6 * 20 - 1, 2)
    [merged] = [row for row in rows if row["kind"] == "lost: nowhere" and row["topic"] == audit_story.MERGES]
    assert merged["id"] == slot_id(0, b"content 4")
    assert len([row for row in rows if row["kind"] == "inversion" and row["group"] == 9]) == 5
    [overlap] = [row for row in rows if row["kind"] == "overlap"]
    assert overlap["id"] != overlap["other"]
    assert overlap["key"] in overlap["text"]
