"""What is unusual in a run and breaks no promise: the audit must not condemn it."""

from __future__ import annotations

from typing import Any

import audit_story
from audit_story import T0_US, Row, S, Story, end

from emq.storage.message import slot_id
from emq.topics.model import Topic, TopicOptions, split
from emq.trail import events, schema
from emq_spark.audit.store import QueueView
from emq_spark.load import ledger

NAME = "odd"
OFFSETS = 20
PUBLISHED = 60
"""Messages that the oddities publish, each id once."""


def topic(qps: float) -> Topic:
    options = TopicOptions(max_attempts=3, max_length=1_000, overflow="drop_oldest")
    return split(Topic(NAME, qps=qps, group_qps=50, options=options))


BEFORE = [topic(120)]
"""The catalog as it once was: three groups of 40. Now there are two of 30."""

NOW = topic(60)


def add(story: Story) -> None:
    """All of them."""
    for group in range(3):
        _row(story, events.OWNED, T0_US, group=group, id=None, epoch=1, priority=None)
    for group in range(NOW.groups):
        for priority in range(3):
            place = (NAME, group, priority)
            story.queues[place] = QueueView(*place, OFFSETS, 1, OFFSETS, OFFSETS)
    for oddity in (
        a_delayed_message_is_recalled,
        one_expires,
        the_oldest_is_dropped_and_no_host_has_noticed,
        the_store_comes_back_without_a_message_and_reads_another_again,
        a_key_s_messages_get_the_offsets_of_lost_ones,
        the_store_forgets_a_queue_and_gives_its_offsets_out_again,
        dead_letters_are_replayed,
        an_occurrence_is_recorded_again_after_a_crash,
        a_publish_of_unknown_outcome_is_repeated,
        a_failed_content_goes_to_its_lane,
        a_content_is_published_by_a_clock_that_is_ahead,
        a_publish_to_a_slot_is_of_unknown_outcome,
        the_quota_was_higher,
        a_key_moves_to_another_group,
    ):
        oddity(story)


def a_delayed_message_is_recalled(story: Story) -> None:
    _sent(story, "recalled", offset=None, due_ms=T0_US // 1000 + 60_000)
    _row(story, events.RECALLED, T0_US + S, id="recalled")


def one_expires(story: Story) -> None:
    _sent(story, "expired", offset=1)
    _row(story, events.DEAD, T0_US + S, id="expired", offset=1, attempt=1, reason="expired", until=T0_US + S)
    story.dead.append((NAME, "expired"))


def the_oldest_is_dropped_and_no_host_has_noticed(story: Story) -> None:
    _sent(story, "oldest", offset=12, group=1, priority=2)
    place = (NAME, 1, 2)
    story.queues[place] = story.queues[place]._replace(watermark=10, head=15)


def the_store_comes_back_without_a_message_and_reads_another_again(story: Story) -> None:
    """Both lay behind what the store had kept; one offset holds another message now, which its owner delivers."""
    _sent(story, "forgotten", offset=OFFSETS + 1, priority=0)
    _row(story, events.LOST, T0_US + 3 * S, offset=OFFSETS, until=OFFSETS + 2, id=None, priority=0)
    _sent(story, "kept", offset=OFFSETS, priority=0)
    _deliver(story, "kept", T0_US + 9 * S, offset=OFFSETS, priority=0)


def a_key_s_messages_get_the_offsets_of_lost_ones(story: Story) -> None:
    """The first was delivered before its store lost it, the second has a lower offset, which was given out again."""
    _row(story, events.LOST, T0_US + 3 * S, offset=7, until=9, id=None, group=1, priority=1)
    for i, (offset, at) in enumerate(((8, T0_US + 2 * S), (7, T0_US + 4 * S))):
        _sent(story, f"again-{i}", offset=offset, group=1, priority=1, key="regular")
        _deliver(story, f"again-{i}", at, offset=offset, group=1, priority=1, key="regular")


def the_store_forgets_a_queue_and_gives_its_offsets_out_again(story: Story) -> None:
    """A topic of its name follows. One host has the group all the time."""
    _row(story, events.FORGOTTEN, T0_US + 3 * S, offset=1, until=9, id=None, group=1, priority=0, source="leader")
    for i, (offset, at) in enumerate(((7, 2), (8, 2), (7, 4), (5, 5))):
        name = f"again-too-{i}"
        where: dict[str, Any] = {"offset": offset, "group": 1, "priority": 0, "key": "returns"}
        _sent(story, name, sent_us=T0_US + (at - 1) * S, answered_us=T0_US + (at - 1) * S + 200, **where)
        _deliver(story, name, T0_US + at * S + i * 10_000, **where)


def dead_letters_are_replayed(story: Story) -> None:
    """One is settled then, the other dies again."""
    for i, last in enumerate((events.SETTLED, events.DEAD)):
        name = f"replayed-{i}"
        _sent(story, name, offset=2 + i)
        _deliver(story, name, T0_US + S, events.DEAD, offset=2 + i)
        _row(story, events.REPLAYED, T0_US + 2 * S, id=name)
        _deliver(story, name, T0_US + 3 * S, last)
    story.dead.append((NAME, "replayed-1"))


def an_occurrence_is_recorded_again_after_a_crash(story: Story) -> None:
    for at in (T0_US + S, T0_US + 3 * S):
        _row(story, events.PUBLISHED, at, id="daily.7", published_us=T0_US + S)
    _deliver(story, "daily.7", T0_US + S + 5_000)


def a_publish_of_unknown_outcome_is_repeated(story: Story) -> None:
    """It is there twice, under one id: in two groups at the same offset."""
    for group in range(2):
        _deliver(story, "repeated", T0_US + S, group=group, offset=5)
    _sent(story, "repeated", offset=5)
    story.sent.append(
        {**story.sent[-1], "group": None, "offset": None, "outcome": ledger.UNKNOWN, "error": "no answer"}
    )


def a_failed_content_goes_to_its_lane(story: Story) -> None:
    name = _content(story, "failed", T0_US + S)
    start = _row(story, events.STARTED, T0_US + S + 500, **_of_slot(name), ready_us=T0_US + S + 400, epoch=1)
    story.trail.append(end({**start, "id": f"{name}~5"}, start["time_us"] + 100, events.RETRIED))
    again = _row(story, events.STARTED, T0_US + 2 * S, **_of_slot(f"{name}~5", 2), ready_us=T0_US + 2 * S - 9, epoch=1)
    story.trail.append(end(again, again["time_us"] + 100))


def a_content_is_published_by_a_clock_that_is_ahead(story: Story) -> None:
    for at in (T0_US + S, T0_US + 3 * S):
        name = _content(story, "ahead", at + 200_000)
        start = _row(story, events.STARTED, at + 60_000, **_of_slot(name), ready_us=at + 50_000, epoch=1)
        story.trail.append(end(start, at + 60_100))


def a_publish_to_a_slot_is_of_unknown_outcome(story: Story) -> None:
    name = _content(story, "unknown", T0_US + S)
    row = {"topic": audit_story.MERGES, "sent_us": T0_US + 2 * S, "error": "connection lost", "seq": 10**7}
    story.sent.append({**_blank(ledger.SCHEMA), **row, "priority": None, "outcome": ledger.UNKNOWN})
    for at in (T0_US + S + 503_000, T0_US + 2 * S + 503_000):
        start = _row(story, events.STARTED, at, **_of_slot(name), ready_us=at - 50, epoch=1)
        story.trail.append(end(start, at + 100))


def the_quota_was_higher(story: Story) -> None:
    """40 starts in a second, where now 30 are allowed."""
    for i in range(40):
        _sent(story, f"busy-{i}", offset=None)
        _deliver(story, f"busy-{i}", T0_US + 4 * S + i * 1_000)


def a_key_moves_to_another_group(story: Story) -> None:
    """Its first message in the new group starts when the last one in the group that is no more has ended."""
    for i, (group, at, took) in enumerate(((2, T0_US + S, S), (0, T0_US + 2 * S, 1_000))):
        _sent(story, f"keyed-{i}", offset=6, group=group, key="customer")
        _deliver(story, f"keyed-{i}", at, took=took, offset=6, group=group, key="customer")


# ------------------------------------------------------------------------------------------------------------- rows


def _blank(fields: Any) -> Row:
    return dict.fromkeys(fields.names) | {"priority": 0}


def _sent(story: Story, name: str, **fields: Any) -> None:
    at = T0_US + 1_000
    row = {"topic": NAME, "group": 0, "id": name, "sent_us": at, "answered_us": at + 200, "seq": 10**7, **fields}
    story.sent.append({**_blank(ledger.SCHEMA), **row, "outcome": ledger.PUBLISHED})


def _row(story: Story, event: str, at: int, **fields: Any) -> Row:
    row = {"event": event, "time_us": at, "topic": NAME, "group": 0, "source": "host-0", **fields}
    story.trail.append({**_blank(schema.SCHEMA), **row})
    return story.trail[-1]


def _deliver(story: Story, name: str, at: int, outcome: str = events.SETTLED, took: int = 100, **fields: Any) -> None:
    fields = {"offset": -1, "attempt": 1, **fields}
    start = _row(story, events.STARTED, at, id=name, ready_us=at - 50, published_us=T0_US + 1_000, epoch=1, **fields)
    why = f"{events.REJECTED}not wanted" if outcome == events.DEAD else None
    story.trail.append(end(start, at + took, outcome) | {"reason": why})


def _content(story: Story, content: str, at: int) -> str:
    """Publish a content of the sorted topic; answers its id."""
    name = slot_id(0, content.encode())
    row = {"topic": audit_story.MERGES, "group": 0, "id": name, "sent_us": at, "answered_us": at + 100, "seq": 10**7}
    story.sent.append({**_blank(ledger.SCHEMA), **row, "outcome": ledger.PUBLISHED})
    return name


def _of_slot(name: str, attempt: int = 1) -> Row:
    return {"topic": audit_story.MERGES, "id": name, "offset": -1, "attempt": attempt}
