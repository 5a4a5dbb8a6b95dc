"""The proof passes a clean ledger, and finds every fault that is planted in one."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from rich.console import Console

from emq import errors
from emq.clock import ManualClock
from emq.message import Message
from emq.storage.names import parts_of
from emq.topics.model import Kind, Topic, TopicOptions, split
from emq.topics.shares import Division
from emq.trail import events, lives, segments
from emq.trail.checks import MAX_EXAMPLES, window_allowance
from emq.trail.limits import limits
from emq.trail.options import TrailOptions
from emq.trail.proof import Expectations, Proof, Wait, prove
from emq.trail.report import render
from emq.trail.writer import Trail

T0_S = 1_000_000_000
T0_US = T0_S * 1_000_000
MS = 1000
CONTENT = f"0-{'a' * 24}"
"""An id as those of sorted topics are."""


@dataclasses.dataclass
class Delivery:
    """One attempt at a message; times in milliseconds after T0. `end` None: it never ended."""

    id: str
    start: float
    end: float | None
    ready: float = 0
    key: str | None = None
    priority: int = 0
    offset: int = 0
    attempt: int = 1
    outcome: str = "settled"
    source: str = "host"

    def message(self) -> Message:
        return Message(
            self.id,
            b"",
            self.key,
            published_us=T0_US,
            priority=self.priority,
            attempt=self.attempt,
            topic="shop",
            offset=self.offset,
            ready_us=T0_US + round(self.ready * MS),
            started_us=T0_US + round(self.start * MS),
        )


def clean(n: int = 20) -> list[Delivery]:
    """Twenty messages within a second, one after the other, of four keys, alternating between two priorities."""
    return [
        Delivery(f"m{i}", 10 * i + 2, 10 * i + 5, 10 * i + 1, f"k{i % 4}", priority=i % 2, offset=i // 2)
        for i in range(n)
    ]


class Story:
    """Writes a ledger: one producer, which publishes the messages of the deliveries, and hosts, which deliver them.

    What hosts do is recorded in the order of its times. Each takes the group just before its first start.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.trails: dict[str, Trail] = {}
        self.epochs: dict[str, int] = {}

    def trail(self, source: str = "host") -> Trail:
        if source not in self.trails:
            options = TrailOptions(rotate_s=60.0, early_s=60.0)
            self.trails[source] = Trail.open(self.directory, source, ManualClock(), options)
        return self.trails[source]

    def publish(self, *deliveries: Delivery) -> Story:
        for d in {d.id: d for d in deliveries if d.attempt == 1}.values():
            published = events.Published(T0_US, "shop", 0, [d.id], d.priority, T0_US, [d.offset], [d.key])
            self.trail("producer").record(published)
        return self

    def own(self, source: str, at_ms: float | None) -> Story:
        """The source takes the group; `None`: without recording it."""
        self.epochs[source] = len(self.epochs) + 1
        if at_ms is not None:
            self.trail(source).record(events.Owned(T0_US + round(at_ms * MS), "shop", 0, self.epochs[source]))
        return self

    def deliver(self, *deliveries: Delivery) -> Story:
        steps: list[tuple[int, Callable[[], None]]] = []
        for d in sorted(deliveries, key=lambda d: d.start):
            trail, m = self.trail(d.source), d.message()
            if d.source not in self.epochs:
                self.own(d.source, d.start)
            steps.append((m.started_us, partial(trail.started, m, self.epochs[d.source])))
            if d.end is not None:
                steps.append((T0_US + round(d.end * MS), partial(_end, trail, m, d)))
        for _, record in sorted(steps, key=lambda step: step[0]):
            record()
        return self

    def close(self) -> None:
        for trail in self.trails.values():
            assert trail.close()

    def prove(self, expected: Expectations | None = None) -> Proof:
        self.close()
        return prove(self.directory, expected or Expectations(still_queued=0))


def _end(trail: Trail, m: Message, d: Delivery) -> None:
    assert d.end is not None
    now_us = T0_US + round(d.end * MS)
    if d.outcome == "settled":
        trail.settled(m, now_us)
    elif d.outcome == "retried":
        trail.record(events.Retried(now_us, m, "failed", now_us // 1000))
    else:
        trail.record(events.Dead(now_us, m, "failed for good"))


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


def tell(story: Story, deliveries: list[Delivery], expected: Expectations | None = None) -> Proof:
    return story.publish(*deliveries).deliver(*deliveries).prove(expected)


def broken(proof: Proof) -> str:
    return "".join(letter for letter, held in proof.promises.items() if not held)


# ------------------------------------------------------------------------------------------------------ clean ledgers


def test_a_clean_ledger_is_proved(story: Story) -> None:
    proof = tell(story, clean(), Expectations(still_queued=(), quotas={"shop/0": 20.0, "shop": 20}))
    assert proof.ok, proof
    assert (proof.events, proof.segments) == (61, 4)
    assert (proof.published, proof.delivered, proof.dead, proof.unfinished) == (20, 20, 0, 0)


def test_retries_dead_letters_and_crashes_are_no_violation_in_themselves(story: Story) -> None:
    deliveries = [
        Delivery("a", 10, 20, outcome="retried", key="k"),
        Delivery("a", 500, 510, 499, key="k", offset=-1, attempt=2),
        Delivery("b", 30, 40, 29, offset=1, outcome="dead"),
        Delivery("c", 50, None, 49, key="x", offset=2),
        Delivery("c", 700, 701, 699, key="x", offset=2, source="successor"),
        Delivery("d", 702, 703, 700, key="x", offset=3, source="successor"),
    ]
    proof = tell(story, deliveries)
    assert proof.ok, proof
    assert (proof.delivered, proof.dead) == (3, 1)


def test_waits_are_those_of_first_attempts(story: Story) -> None:
    deliveries = [Delivery(f"m{i}", i, i, offset=i) for i in range(1, 101)]
    deliveries.append(Delivery("m1", 5000, 5001, attempt=2, offset=-1, outcome="retried"))
    assert tell(story, deliveries).waits == {"shop": Wait(100, 50_000, 99_000)}


# --------------------------------------------------------------------------------------------------- L, D, X: accounts


def test_one_message_dropped_is_found(story: Story) -> None:
    deliveries = clean()
    deliveries[7].key = None
    proof = story.publish(*deliveries).deliver(*deliveries[:7], *deliveries[8:]).prove()
    assert broken(proof) == "L"
    assert (proof.lost.count, proof.unfinished) == (1, 0)
    assert "shop/m7" in proof.lost.examples[0]


@pytest.mark.parametrize(
    ("still_queued", "lost", "unfinished"),
    [((), 2, 0), ({"m7"}, 1, 1), ({"m7", "m8"}, 0, 2), (0, 2, 0), (1, 1, 1), (2, 0, 2), (3, 0, 2), (None, 0, 2)],
)
def test_what_is_still_in_the_store_is_not_lost(
    story: Story, still_queued: set[str] | int | None, lost: int, unfinished: int
) -> None:
    deliveries = clean()
    deliveries[7].key = deliveries[8].key = None
    story.publish(*deliveries).deliver(*deliveries[:7], *deliveries[9:])
    proof = story.prove(Expectations(still_queued=still_queued))
    assert (proof.lost.count, proof.unfinished) == (lost, unfinished)
    assert proof.ok == (lost == 0)


def test_a_message_skipped_as_a_hole_is_lost_even_where_the_store_is_not_known(story: Story) -> None:
    deliveries = clean()
    story.publish(*deliveries).deliver(*deliveries[:7], *deliveries[8:])
    story.trail().record(events.Skipped(T0_US, "shop", 0, 1, 2, 5))
    proof = story.prove(Expectations(still_queued=None))
    assert (proof.lost.count, proof.lost.examples, proof.unfinished, proof.skipped) == (1, ("shop/m7",), 0, 3)


def test_messages_dropped_or_recalled_on_purpose_are_not_lost(story: Story) -> None:
    deliveries = clean()
    story.publish(*deliveries).deliver(*deliveries[:7], *deliveries[10:])
    story.trail().record(events.Dropped(T0_US, "shop", 0, 1, 3, 4))
    story.trail().record(events.Dropped(T0_US, "shop", 0, 1, 4, 5))
    story.trail().record(events.Recalled(T0_US, "shop", 0, 0, "m8"))
    proof = story.prove()
    assert proof.ok, proof
    assert (proof.dropped, proof.delivered) == (3, 17)


def test_one_message_delivered_twice_is_found_and_may_be_allowed(story: Story) -> None:
    again = Delivery("m3", 300, 305, 299, "k3", priority=1, offset=1, source="next")
    proof = tell(story, [*clean(), again])
    assert broken(proof) == "D"
    assert proof.duplicates.examples == ("shop/m3 settled 2 times",)
    assert prove(story.directory, Expectations(still_queued=0, duplicates_allowed=1)).ok


def test_a_merged_message_may_be_delivered_as_often_as_it_was_published(story: Story) -> None:
    twice = [Delivery("m", 10, 11), Delivery("m", 20, 21, offset=1)]
    story.publish(twice[0]).deliver(*twice)
    story.trail("producer").record(events.Published(T0_US + 1, "shop", 0, ["m"], 0, T0_US + 1, [1]))
    proof = story.prove()
    assert proof.ok, proof


def test_what_nobody_published_is_reported_but_no_violation(story: Story) -> None:
    proof = story.publish(*clean()[1:]).deliver(*clean()).prove()
    assert proof.ok
    assert proof.unknown.examples == ("shop/m0",)


def test_a_message_that_is_dead_twice_is_found(story: Story) -> None:
    deliveries = [Delivery("a", 10, 11, outcome="dead"), Delivery("a", 20, 21, outcome="dead", source="next")]
    proof = tell(story, deliveries)
    assert broken(proof) == "X"
    assert proof.dead_twice.examples == ("shop/a became a dead letter 2 times",)


def test_a_replayed_dead_letter_may_die_again_but_not_vanish(story: Story) -> None:
    dies = [Delivery(name, 10 + i, 11 + i, outcome="dead", offset=i) for i, name in enumerate("abc")]
    story.publish(*dies).deliver(*dies)
    story.trail().record(events.Replayed(T0_US + 100 * MS, "shop", 0, 0, "a"))
    story.trail().record(events.Replayed(T0_US + 100 * MS, "shop", 0, 0, "b"))
    story.trail().record(events.Replayed(T0_US + 100 * MS, "shop", 0, 0, "c"))
    story.deliver(Delivery("a", 200, 201, offset=-1, outcome="dead"), Delivery("b", 210, 211, offset=-1))
    proof = story.prove()
    assert (broken(proof), proof.lost.examples) == ("L", ("shop/c",))
    assert (proof.dead, proof.delivered) == (1, 1)


# ------------------------------------------------------------------------------------------------- ids that come back


class Slot:
    """A story about one id of a sorted topic, `shop/<CONTENT>`; times in milliseconds after T0."""

    def __init__(self, story: Story) -> None:
        self.story = story

    def publish(self, at: float, took: float = 1) -> Slot:
        begun_us = T0_US + round(at * MS)
        done_us = begun_us + round(took * MS)
        self.story.trail("producer").record(events.Published(done_us, "shop", 0, [CONTENT], 0, begun_us))
        return self

    def merge(self, at: float) -> Slot:
        at_us = T0_US + round(at * MS)
        self.story.trail("producer").record(events.Merged(at_us, "shop", 0, [CONTENT], at_us))
        return self

    def deliver(self, start: float, end: float | None, outcome: str = "settled", **more: Any) -> Slot:
        self.story.deliver(
            Delivery(CONTENT, start, end, **{"ready": start - 1, "offset": -1, "outcome": outcome, **more})
        )
        return self

    def prove(self, still_queued: Collection[str] | None = ()) -> Proof:
        return self.story.prove(Expectations(still_queued=still_queued, max_skew_s=0.0))


@pytest.fixture
def slot(story: Story) -> Slot:
    return Slot(story)


def test_an_id_may_be_published_merged_and_settled_again_and_again(slot: Slot) -> None:
    for at in (0, 100, 200):
        slot.publish(at).merge(at + 5).merge(at + 6).deliver(at + 10, at + 20)
    proof = slot.prove()
    assert proof.ok, proof
    assert (proof.published, proof.merged, proof.delivered) == (1, 6, 1)


def test_a_last_publish_that_nothing_came_of_is_lost_unless_it_is_still_there(slot: Slot) -> None:
    slot.publish(0).deliver(10, 20).publish(100)
    proof = slot.prove()
    assert (broken(proof), proof.lost.examples) == ("L", (f"shop/{CONTENT}",))
    kept = prove(slot.story.directory, Expectations(still_queued={CONTENT}, max_skew_s=0.0))
    assert (kept.ok, kept.unfinished) == (True, 1)


def test_a_publish_during_the_delivery_of_its_twin_needs_an_end_of_its_own(slot: Slot) -> None:
    slot.publish(0).publish(15).deliver(10, 20)
    assert broken(slot.prove()) == "L", "the delivery was under way when the second one began"
    again = Slot(Story(slot.story.directory / "again"))
    again.publish(0).publish(15).deliver(10, 20).deliver(30, 40)
    assert again.prove().ok


def test_a_publish_after_its_twin_was_fetched_needs_an_end_of_its_own(slot: Slot) -> None:
    proof = slot.publish(0).publish(1500).deliver(2000, 2001, ready=1000).prove()
    assert (broken(proof), proof.lost.count) == ("L", 1)


def test_a_failure_ends_nothing(slot: Slot) -> None:
    proof = slot.publish(0).deliver(10, 20).publish(1000).deliver(1010, 1020, "retried").prove()
    assert (broken(proof), proof.lost.count) == ("L", 1)


def test_twins_that_a_failure_made_one_end_once(slot: Slot) -> None:
    slot.publish(0).publish(15).deliver(10, 20, "retried").deliver(30, 40, attempt=2)
    assert slot.prove().ok


def test_a_settle_within_the_publish_that_led_to_it_counts_for_it(slot: Slot) -> None:
    slot.publish(0).deliver(10, 20).publish(100, took=50).deliver(110, 120)
    assert slot.prove().ok


def test_a_repeat_counts_within_one_publish_and_its_settle(slot: Slot) -> None:
    slot.publish(0).deliver(10, 20).deliver(30, 40).publish(100).deliver(110, 120)
    proof = slot.prove()
    assert (broken(proof), proof.duplicates.count, proof.surplus) == ("D", 1, 1)
    assert proof.duplicates.examples == (f"shop/{CONTENT} settled 3 times",)


def test_a_repeat_does_not_stand_in_for_a_later_publish(slot: Slot) -> None:
    slot.publish(0).deliver(10, 20).deliver(30, 40).publish(100)
    assert broken(slot.prove()) == "LD"


def test_an_id_may_die_once_for_each_publish_and_replay(slot: Slot) -> None:
    slot.publish(0).deliver(10, 20, "dead").publish(100).deliver(110, 120, "dead")
    slot.story.trail("cli").record(events.Replayed(T0_US + 200 * MS, "shop", 0, 0, CONTENT))
    slot.deliver(210, 220, "dead")
    proof = slot.prove()
    assert proof.ok, proof
    assert proof.dead == 1
    slot = Slot(Story(slot.story.directory / "again"))
    slot.publish(0).deliver(10, 20, "dead").deliver(30, 40, "dead").publish(100).deliver(110, 120)
    assert broken(slot.prove()) == "X"


def test_what_left_its_slot_for_the_lane_goes_on_under_its_own_id(slot: Slot) -> None:
    copy, trail = f"{CONTENT}~5", slot.story.trail()
    moved = Delivery(CONTENT, 10, 20, ready=9, offset=-1, key="k")

    def so_far(still_queued: Collection[str]) -> Proof:
        for written in slot.story.trails.values():
            assert written.flush()
        return prove(slot.story.directory, Expectations(still_queued=still_queued))

    slot.publish(0).story.own("host", 5)
    m = moved.message()
    trail.started(m, 1)
    m.id = copy
    trail.record(events.Retried(T0_US + 20 * MS, m, "failed", T0_US // 1000 + 100))
    assert so_far({copy}).unfinished == 1
    slot.publish(30).deliver(40, 50, key="k")
    assert so_far(()).lost.examples == (f"shop/{copy}",)
    slot.story.deliver(Delivery(copy, 100, 110, ready=99, offset=-1, key="k", attempt=2))
    proof = slot.prove()
    assert proof.ok, proof
    assert (proof.delivered, proof.unknown.count) == (2, 0)


def test_a_publish_whose_message_left_for_the_lane_is_not_lost(slot: Slot) -> None:
    slot.publish(0).deliver(10, 20).publish(100)
    m = Delivery(CONTENT, 110, 120, ready=109, offset=-1).message()
    slot.story.trail().started(m, 1)
    m.id = f"{CONTENT}~5"
    slot.story.trail().record(events.Retried(T0_US + 120 * MS, m, "failed", T0_US // 1000 + 200))
    slot.story.deliver(Delivery(f"{CONTENT}~5", 200, 210, ready=199, offset=-1, attempt=2))
    proof = slot.prove()
    assert proof.ok, proof


def test_a_replayed_id_that_was_published_before_must_not_vanish(slot: Slot) -> None:
    slot.publish(0).deliver(10, 20).publish(100).deliver(110, 120, "dead")
    slot.story.trail("cli").record(events.Replayed(T0_US + 200 * MS, "shop", 0, 0, CONTENT))
    proof = slot.prove()
    assert (broken(proof), proof.dead) == ("L", 0)


def test_what_was_recalled_or_expired_last_is_finished(slot: Slot) -> None:
    slot.publish(0).deliver(10, 20).publish(100)
    slot.story.trail("cli").record(events.Recalled(T0_US + 150 * MS, "shop", 0, 0, CONTENT))
    assert slot.prove().ok
    slot = Slot(Story(slot.story.directory / "again"))
    slot.publish(0).deliver(10, 20).publish(100)
    expired = Delivery(CONTENT, 0, None, offset=-1).message()
    expired.expires_us = T0_US + 140 * MS
    slot.story.trail().record(events.Dead(T0_US + 150 * MS, expired, "expired"))
    proof = slot.prove()
    assert (proof.ok, proof.dead) == (True, 1)


def test_ids_published_once_do_not_depend_on_clocks(story: Story) -> None:
    early = [Delivery(f"m{i}", -50 + i, -40 + i, ready=-60, offset=i) for i in range(5)]
    assert tell(story, early).ok


def test_surplus_ends_are_those_that_no_publish_before_them_allows() -> None:
    assert [lives.surplus(1, [], reaches) for reaches in ([], [5], [5, 5], [5, 6, 7])] == [0, 0, 1, 2]
    assert lives.surplus(1, [10], [5, 10]) == lives.surplus(1, [10], [10, 11]) == 0
    assert lives.surplus(1, [10], [5, 9, 11]) == 1


# ------------------------------------------------------------------------------------------------------------ Q: caps


def test_one_start_too_many_in_an_aligned_second_is_found(story: Story) -> None:
    extra = Delivery("extra", 999.999, 1001, 999, offset=99)
    proof = tell(story, [*clean(), extra], Expectations(still_queued=0, quotas={"shop/0": 20}))
    assert broken(proof) == "Q"
    assert proof.cap_violations.examples == (f"shop/0 started 21 in second {T0_S}, 20 allowed",)


def test_groups_that_keep_their_caps_and_exceed_the_topics_together_are_found(story: Story) -> None:
    topic = split(Topic("shop", qps=2, kind=Kind.RANGE_MERGE, slots=4, priorities=()))
    deliveries = [Delivery(f"m{i}", 10 + i, 20 + i, offset=0) for i in range(4)]
    for group, d in enumerate(deliveries):
        story.trail("producer").record(events.Published(T0_US, "shop", group, [d.id], 0, T0_US, [0]))
        m = d.message()
        m.group = group
        story.trail().started(m, 1)
        story.trail().settled(m, T0_US + 30 * MS)
    story.close()
    quotas, bursts = limits([topic])
    proof = prove(story.directory, Expectations(still_queued=0, quotas=quotas, bursts=bursts))
    assert f"shop started 4 in second {T0_S}, 2 allowed" in proof.cap_violations.examples


def test_a_group_that_starts_in_a_second_that_is_not_its_own_is_found(story: Story) -> None:
    """One start of half a start a second, which the topic as a whole may make then."""
    topic = split(Topic("shop", qps=2, kind=Kind.RANGE_MERGE, slots=4, priorities=()))
    second = next(s for s in range(T0_S, T0_S + 2) if not topic.division.share(0).allowance(s))
    deliveries = [Delivery("m", 1000 * (second - T0_S) + 10, 1000 * (second - T0_S) + 20)]
    story.publish(*deliveries).deliver(*deliveries).close()
    quotas, bursts = limits([topic])
    proof = prove(story.directory, Expectations(still_queued=0, quotas=quotas, bursts=bursts))
    assert proof.cap_violations.examples == (f"shop/0 started 1 in second {second}, 0 allowed",)


def test_a_group_is_held_to_its_share_since_the_topic_was_changed_and_before_that_to_any(story: Story) -> None:
    topic = split(Topic("shop", qps=4, group_qps=3))
    changed = msgspec.structs.replace(topic, divisions=(Division(T0_S + 1, 4, 3, 2),))
    assert [changed.division.share(group).ceiling for group in range(2)] == [2, 2]
    deliveries = [Delivery(f"m{i}", t, t + 1, offset=i) for i, t in enumerate((1, 2, 3, 1001, 1002, 1003))]
    story.publish(*deliveries).deliver(*deliveries).close()
    for given, found in ((topic, 2), (changed, 1)):
        quotas, bursts = limits([given])
        proof = prove(story.directory, Expectations(still_queued=0, quotas=quotas, bursts=bursts))
        assert proof.cap_violations.count == found, proof.cap_violations


def test_before_its_topic_was_changed_a_group_is_held_to_what_any_group_may_have(story: Story) -> None:
    topic = split(Topic("shop", qps=4, group_qps=3))
    changed = msgspec.structs.replace(topic, divisions=(Division(T0_S + 1, 4, 3, 2),))
    deliveries = [Delivery(f"m{i}", i, i + 0.5, offset=i) for i in range(4)]
    quotas, bursts = limits([changed])
    proof = tell(story, deliveries, Expectations(still_queued=0, quotas=quotas, bursts=bursts))
    assert proof.cap_violations.examples == (f"shop/0 started 4 in second {T0_S}, 3 allowed",)


def test_bursts_of_smooth_groups_that_exceed_the_topics_together_are_found(story: Story) -> None:
    topic = split(Topic("shop", qps=10, kind=Kind.RANGE_MERGE, slots=4, options=TopicOptions(pacing="smooth")))
    deliveries = [Delivery(f"m{i}", i, 20 + i, offset=i) for i in range(14)]
    for i, d in enumerate(deliveries):
        story.trail("producer").record(events.Published(T0_US, "shop", i % 4, [d.id], 0, T0_US, [i]))
        m = d.message()
        m.group = i % 4
        story.trail().started(m, 1)
        story.trail().settled(m, T0_US + 30 * MS)
    story.close()
    quotas, bursts = limits([topic])
    proof = prove(story.directory, Expectations(still_queued=0, quotas=quotas, bursts=bursts))
    assert "shop started 14 within the second" in proof.cap_violations.examples[0]


def test_a_start_in_the_next_second_is_not_too_many(story: Story) -> None:
    extra = Delivery("extra", 1000, 1001, 999, offset=99)
    assert tell(story, [*clean(), extra], Expectations(still_queued=0, quotas={"shop/0": 20})).ok


def test_fractions_of_a_quota_carry_over_as_in_the_counter(story: Story) -> None:
    assert [window_allowance(2.5, s) for s in range(4)] == [2, 3, 2, 3]
    assert sum(window_allowance(0.1, T0_S + s) for s in range(10)) == 1
    deliveries = [Delivery(f"m{i}", t, t, offset=i) for i, t in enumerate((1, 2, 1000, 1001, 1002))]
    story.publish(*deliveries).deliver(*deliveries).close()
    assert prove(story.directory, Expectations(quotas={"shop/0": 2.5})).ok
    with_own_rule = Expectations(quotas={"shop/0": 2.5}, allowance=lambda quota, second: int(quota))
    assert prove(story.directory, with_own_rule).cap_violations.count == 1


def test_a_quota_that_changed_holds_from_its_time_on(story: Story) -> None:
    deliveries = [Delivery(f"m{i}", t, t, offset=i) for i, t in enumerate((0, 1, 1000, 1001, 2000, 2001, 3000))]
    story.publish(*deliveries).deliver(*deliveries).close()

    def violations(*changes: tuple[int, float]) -> int:
        quotas = {"shop/0": [(T0_US + ms * MS, quota) for ms, quota in changes]}
        return prove(story.directory, Expectations(quotas=quotas)).cap_violations.count

    assert violations((0, 2)) == 0
    assert violations((0, 1)) == 3
    assert violations((0, 2), (1500, 1)) == 1, "second 2 has two starts; in second 1 both quotas were in force"
    assert violations((0, 1), (1500, 2)) == 1, "second 0 has two starts under the lower quota"
    assert violations((2000, 2)) == 2, "before the first quota nothing is allowed"


@pytest.mark.parametrize(
    ("ahead_ms", "skew_s", "found"), [(100, 0.25, 0), (100, 0.05, 1), (400, 0.25, 1), (0, 0.25, 0)]
)
def test_a_move_between_clocks_that_differ_is_judged_as_if_they_did_not(
    story: Story, ahead_ms: int, skew_s: float, found: int
) -> None:
    """Fifty a second on a host, and then on another one; the first one's clock is ahead."""
    first = [Delivery(f"a{i}", 20 * i + ahead_ms, 20 * i + ahead_ms + 1, offset=i) for i in range(100)]
    second = [Delivery(f"b{i}", 2000 + 20 * i, 2001 + 20 * i, offset=100 + i, source="other") for i in range(100)]
    story.publish(*first, *second).own("host", 0).own("other", 1999).deliver(*first, *second)
    quotas = {"shop/0": 50}
    story.close()
    proof = prove(story.directory, Expectations(still_queued=0, quotas=quotas, max_skew_s=skew_s))
    assert (proof.cap_violations.count, len(proof.owners.examples)) == (found, ahead_ms / 1000 > skew_s)


def test_two_hosts_that_start_a_group_s_quota_in_one_second_are_found(story: Story) -> None:
    """Each in all seconds, as if nobody had told them of the other one."""
    both = [
        Delivery(f"{source}{i}", 20 * i, 20 * i + 1, offset=i + 150 * (source == "b"), source=source)
        for i in range(150)
        for source in ("a", "b")
    ]
    proof = tell(story, both, Expectations(still_queued=0, quotas={"shop/0": 50}))
    assert proof.cap_violations.count == 3


def test_one_start_too_many_in_a_sliding_second_is_found(story: Story) -> None:
    deliveries = [Delivery(f"m{i}", 500 + 50 * i, 500 + 50 * i, offset=i) for i in range(20)]
    smooth = Expectations(still_queued=0, quotas={"shop/0": 18}, bursts={"shop/0": 2})
    story.publish(*deliveries).deliver(*deliveries).close()
    assert prove(story.directory, smooth).ok
    tight = dataclasses.replace(smooth, bursts={"shop/0": 1})
    proof = prove(story.directory, tight)
    assert broken(proof) == "Q"
    assert proof.cap_violations.examples == (
        f"shop/0 started 20 within the second from {T0_US + 500 * MS} us, 19 allowed",
    )
    aligned = Expectations(still_queued=0, quotas={"shop/0": 10})
    assert prove(story.directory, aligned).ok, "the aligned check would not have noticed"


def test_starts_a_whole_second_apart_share_no_sliding_second(story: Story) -> None:
    deliveries = [Delivery("a", 500, 501), Delivery("b", 1500, 1501, offset=1)]
    assert tell(story, deliveries, Expectations(quotas={"shop/0": 0.5}, bursts={"shop/0": 1})).ok


def test_a_burst_without_a_quota_is_refused() -> None:
    with pytest.raises(errors.InvalidSettings, match="'shop/0' but no quota"):
        Expectations(bursts={"shop/0": 2})


# -------------------------------------------------------------------------------------------------------- P: priority

HIGH_READY_AT_10 = Delivery("high", 30, 31, ready=10, offset=7)


def low(start: float, **changes: object) -> Delivery:
    return dataclasses.replace(Delivery("low", start, start + 1, ready=1, priority=1, offset=1), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(("start", "found"), [(9, 0), (10, 0), (10.001, 1), (29.999, 1), (30, 0), (31, 0)])
def test_one_inversion_is_found(story: Story, start: float, found: int) -> None:
    proof = tell(story, [low(start), HIGH_READY_AT_10])
    assert proof.priority_inversions.count == found
    assert broken(proof) == "P" * found


def test_only_strict_topics_promise_priority(story: Story) -> None:
    tell(story, [low(20), HIGH_READY_AT_10])
    assert not prove(story.directory, Expectations(strict=["shop"])).ok
    assert prove(story.directory, Expectations(strict=["other"])).ok


def test_a_retry_that_is_ready_counts_at_its_own_priority(story: Story) -> None:
    first = Delivery("high", 2, 3, ready=1, offset=7, outcome="retried", key="k")
    second = dataclasses.replace(HIGH_READY_AT_10, attempt=2, offset=-1, key="k")
    proof = tell(story, [first, low(5), second])
    assert proof.ok, "it was not ready during its backoff"
    story = Story(story.directory / "again")
    proof = tell(story, [first, low(20), second])
    assert broken(proof) == "P", "a message does not hold itself back"


@pytest.mark.parametrize(
    ("holder_ends", "outcome", "found"),
    [(25, "settled", 0), (15, "settled", 1), (15, "retried", 0), (15, "dead", 1), (None, "", 0)],
)
def test_a_message_that_waits_for_its_key_is_excused(
    story: Story, holder_ends: float | None, outcome: str, found: int
) -> None:
    holder = Delivery("holder", 5, holder_ends, ready=4, key="k", priority=1, outcome=outcome)
    waiting = dataclasses.replace(HIGH_READY_AT_10, key="k")
    assert tell(story, [holder, low(20), waiting]).priority_inversions.count == found


# ------------------------------------------------------------------------------------------------------- K: key order


def test_two_first_deliveries_swapped_are_found(story: Story) -> None:
    deliveries = clean()
    third, seventh = deliveries[3], deliveries[7]
    assert third.key == seventh.key
    third.offset, seventh.offset = seventh.offset, third.offset
    proof = tell(story, deliveries)
    assert broken(proof) == "K"
    assert proof.key_order.examples == ("shop/m7 (offset 1) of key 'k3' was started after shop/m3 (offset 3)",)


def test_a_loss_that_was_noticed_before_excuses_no_disorder(story: Story) -> None:
    deliveries = [Delivery("a", 10, 11, key="k", offset=2), Delivery("b", 20, 21, key="k", offset=1)]
    story.publish(*deliveries).own("host", 1)
    story.trail().record(events.Lost(T0_US + 5 * MS, "shop", 0, 0, 5, 6))
    proof = story.deliver(*deliveries).prove()
    assert proof.key_order.examples == ("shop/b (offset 1) of key 'k' was started after shop/a (offset 2)",)


def test_redeliveries_and_other_queues_have_no_order(story: Story) -> None:
    deliveries = [
        Delivery("a", 10, 11, key="k", offset=5, outcome="retried"),
        Delivery("b", 20, 21, key="k", offset=6),
        Delivery("a", 30, 31, 29, key="k", offset=-1, attempt=2),
        Delivery("low", 40, 41, 39, key="k", offset=1, priority=1),
        Delivery("none", 50, 51, 49, offset=2),
    ]
    assert tell(story, deliveries).ok


@pytest.mark.parametrize(("start", "found"), [(14.999, 1), (15, 0)])
@pytest.mark.parametrize("outcome", ["settled", "retried", "dead"])
def test_two_overlapping_runs_of_a_key_are_found(story: Story, start: float, outcome: str, found: int) -> None:
    deliveries = [
        Delivery("a", 10, 15, key="k", outcome=outcome),
        Delivery("b", start, start + 1, key="k", offset=1),
    ]
    proof = tell(story, deliveries, Expectations())
    assert proof.key_order.count == found


def test_a_long_run_overlaps_all_that_start_meanwhile(story: Story) -> None:
    deliveries = [Delivery("a", 0, 100, key="k"), *(Delivery(f"b{i}", i, i, key="k", offset=i) for i in range(1, 30))]
    proof = tell(story, deliveries)
    assert (proof.key_order.count, len(proof.key_order.examples)) == (29, MAX_EXAMPLES)


def test_a_run_without_an_end_blocks_its_key_until_it_is_started_again(story: Story) -> None:
    lost = Delivery("a", 10, None, key="k")
    other = Delivery("b", 20, 21, key="k", offset=1)
    again = Delivery("a", 30, 31, 29, key="k", source="successor")
    assert broken(tell(story, [lost, other, again])) == "K"


def test_the_end_of_an_earlier_run_does_not_end_a_later_one(story: Story) -> None:
    story.deliver(Delivery("a", 10, 15, key="k"), Delivery("a", 20, None, key="k"))
    assert story.deliver(Delivery("b", 30, 31, key="k", offset=1)).prove().key_order.count == 1


def cut_short(story: Story, source: str = "host") -> None:
    """The source is killed: what it has told last is not closed."""
    story.close()
    newest = max(story.directory.glob(f"{source}-*.parquet"))
    newest.unlink()


@pytest.mark.parametrize(("owned_ms", "start", "found"), [(15, 20, 0), (25, 20, 1), (None, 20, 1)])
def test_what_a_killed_host_ran_is_over_when_its_group_is_taken_over(
    story: Story, owned_ms: int | None, start: float, found: int
) -> None:
    story.deliver(Delivery("a", 10, None, key="k"))
    story.own("successor", owned_ms)
    if owned_ms is not None:
        story.trail("successor").record(events.Owned(T0_US + 12 * MS, "shop", 1, 2))
    story.deliver(Delivery("b", start, start + 1, key="k", offset=1, source="successor"))
    story.trail().flush()
    cut_short(story)
    assert prove(story.directory, Expectations(max_skew_s=0.0)).key_order.count == found


def test_a_host_that_lives_on_after_a_takeover_still_runs_what_it_began(story: Story) -> None:
    story.deliver(Delivery("a", 10, None, key="k"))
    story.own("successor", 15)
    story.deliver(Delivery("b", 20, 21, key="k", offset=1, source="successor"), Delivery("c", 30, 31))
    story.trail().flush()
    cut_short(story)
    assert prove(story.directory).key_order.count == 1


@pytest.mark.parametrize(
    ("killed_ms", "offset", "deaths", "found"),
    [
        (1_000, 0, 2, 0),
        (9_000, 0, 2, 1),
        (1_000, 0, 3, 1),
        (1_000, -1, 2, 1),
        (None, 0, 2, 1),
    ],
)
def test_a_killed_host_s_last_dead_letters_may_be_made_again(
    story: Story, killed_ms: int | None, offset: int, deaths: int, found: int
) -> None:
    story.deliver(Delivery("a", 10, 15, offset=offset, outcome="dead"))
    if killed_ms is not None:
        story.deliver(Delivery("z", killed_ms - 1, killed_ms))
    for i in range(1, deaths):
        story.deliver(Delivery("a", 20_000 * i, 20_000 * i + 5, offset=offset, outcome="dead", source=f"successor{i}"))
    if killed_ms is not None:
        story.trail().flush()
        cut_short(story)
    else:
        story.close()
    assert prove(story.directory).dead_twice.count == found


def test_a_dead_letter_that_another_host_made_shortly_before_a_kill_is_not_made_again(story: Story) -> None:
    story.deliver(Delivery("z", 999, 1_000))
    story.deliver(*(Delivery("a", at, at + 5, outcome="dead", source="other") for at in (900, 20_000)))
    story.trail().flush()
    cut_short(story)
    assert prove(story.directory).dead_twice.count == 1


@pytest.mark.parametrize(("killed_ms", "deaths", "found"), [(1_000, 1, 0), (1_000, 2, 1), (9_000, 1, 1), (None, 1, 1)])
def test_what_a_killed_host_had_retried_may_die_in_its_lane_before_it_does_so_from_its_queue(
    story: Story, killed_ms: int | None, deaths: int, found: int
) -> None:
    story.deliver(Delivery("a", 10, 15, offset=0, outcome="retried"))
    if killed_ms is not None:
        story.deliver(Delivery("z", killed_ms - 1, killed_ms))
    lane = Delivery("a", 20_000, 20_005, offset=-1, attempt=2, outcome="dead", source="successor")
    queue = [Delivery("a", 20_010 + i, 20_015 + i, outcome="dead", source="successor") for i in range(deaths)]
    story.deliver(lane, *queue)
    story.trail().flush()
    if killed_ms is not None:
        cut_short(story)
    else:
        story.close()
    assert prove(story.directory).dead_twice.count == found


@pytest.mark.parametrize(("killed", "found"), [(True, 0), (False, 1)])
def test_what_a_killed_host_had_moved_to_its_lane_dies_there_alone(story: Story, killed: bool, found: int) -> None:
    story.deliver(Delivery("z", 10, 11))
    again = Delivery("a", 20, 21, outcome="dead", source="successor")
    story.deliver(again, dataclasses.replace(again, start=30, end=31, offset=-1, attempt=2))
    story.trail().flush()
    if killed:
        cut_short(story)
    else:
        story.close()
    assert prove(story.directory).dead_twice.count == found


def test_a_host_that_ended_in_order_has_ended_nothing_by_that(story: Story) -> None:
    story.deliver(Delivery("a", 10, None, key="k"))
    story.trail("successor").record(events.Owned(T0_US + 15 * MS, "shop", 0, 2))
    story.deliver(Delivery("b", 20, 21, key="k", offset=1, source="successor"))
    assert story.prove().key_order.count == 1


# --------------------------------------------------------------------------------------------------- void: the ledger


@pytest.fixture
def ledger(story: Story) -> Path:
    """A clean ledger whose host wrote four segments, numbers 0 to 3."""
    deliveries = clean()
    story.publish(*deliveries)
    for part in (deliveries[:10], deliveries[10:]):
        story.deliver(*part)
        story.trail().flush()
    story.close()
    assert prove(story.directory).ok
    return story.directory


def host_segment(directory: Path, number: int) -> Path:
    return directory / f"host-{T0_US}-{number:06d}.parquet"


def reasons(directory: Path) -> tuple[str, ...]:
    proof = prove(directory)
    assert not proof.ok
    return proof.void_reasons


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_missing_segment_voids(ledger: Path, number: int) -> None:
    host_segment(ledger, number).unlink()
    assert reasons(ledger) == (f"host-{T0_US}: 1 segments are missing (numbers {number})",)


def test_an_unclosed_source_voids(ledger: Path) -> None:
    host_segment(ledger, 3).unlink()
    assert reasons(ledger) == (f"host-{T0_US}: not closed after segment 2, the source crashed or still runs",)


@pytest.mark.parametrize("keep", [0, 3, 500])
def test_a_truncated_segment_voids_and_is_named(ledger: Path, keep: int) -> None:
    path = host_segment(ledger, 1)
    path.write_bytes(path.read_bytes()[:keep])
    first, second = reasons(ledger)
    assert first.startswith(f"{path.name}: truncated or damaged")
    assert second == f"host-{T0_US}: 1 segments are missing (numbers 1)"


def test_damaged_data_inside_a_segment_voids(ledger: Path) -> None:
    path = host_segment(ledger, 1)
    data = bytearray(path.read_bytes())
    data[4:400] = b"\xff" * 396
    path.write_bytes(data)
    assert reasons(ledger)[0].startswith(f"{path.name}: truncated or damaged")


def test_foreign_files_void_and_are_named(ledger: Path) -> None:
    (ledger / "notes.txt").write_text("not a segment")
    copy = host_segment(ledger, 9)
    copy.write_bytes(host_segment(ledger, 1).read_bytes())
    pq.write_table(pa.table({"a": [1]}), ledger / "x-1-000000.parquet")
    assert reasons(ledger) == (
        f"{copy.name}: foreign, it says that it is {host_segment(ledger, 1).name}",
        "notes.txt: foreign, not a segment of a trail",
        "x-1-000000.parquet: foreign, it carries no trail metadata",
    )


def test_files_that_readers_hide_and_files_under_way_are_passed_over(ledger: Path) -> None:
    for name in ("_SUCCESS", ".crc", host_segment(ledger, 4).name + ".tmp"):
        (ledger / name).write_bytes(b"")
    assert prove(ledger).ok


def test_recorded_drops_void(ledger: Path) -> None:
    path = host_segment(ledger, 3)
    header, table = segments._read_segment(path)
    segments.write(ledger, header._replace(dropped=12), table)
    assert reasons(ledger) == (f"host-{T0_US}: 12 events were dropped",)


def test_a_segment_of_a_later_version_voids(ledger: Path) -> None:
    header, table = segments._read_segment(host_segment(ledger, 2))
    segments.write(ledger, header._replace(version=2), table)
    assert reasons(ledger)[0].endswith("of schema version 2, this program reads 1")


def test_an_empty_directory_proves_nothing(tmp_path: Path) -> None:
    assert reasons(tmp_path) == ("there is no readable segment",)


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidSettings, match=r"no trail directory .*nowhere"):
        prove(tmp_path / "nowhere")


# ------------------------------------------------------------------------------------------------------------- output


def printed(proof: Proof) -> str:
    text = io.StringIO()
    Console(width=160, file=text).print(render(proof))
    return text.getvalue()


def test_the_proof_is_readable_and_fit_for_json(story: Story) -> None:
    proof = tell(story, clean())
    text = printed(proof)
    assert "✓ proved from 61 events in 4 segments" in text
    assert "✗" not in text
    assert json.loads(json.dumps(proof.to_dict()))["published"] == 20


def test_a_broken_and_a_void_proof_say_so(ledger: Path) -> None:
    proof = prove(ledger, Expectations(quotas={"shop/0": 1}))
    assert "✗ broken: Q" in printed(proof)
    assert "shop/0 started 20 in second" in printed(proof)
    host_segment(ledger, 3).unlink()
    assert "void: host-" in printed(prove(ledger))
    assert proof.to_dict()["promises"] == {letter: letter != "Q" for letter in "LDQPKOMTX"}


def test_what_a_store_has_forgotten_is_no_loss_of_ours_and_what_came_in_its_place_is_another_message(
    story: Story,
) -> None:
    kept, gone = Delivery("kept", 1, 2, offset=1), Delivery("gone", 3, None, offset=2)
    new, after = Delivery("new", 50, 51, offset=2), Delivery("after", 52, 53, offset=3)
    story.publish(kept, gone).deliver(kept)
    story.trail("producer").record(events.Published(T0_US + 10, "shop", 0, ["new"], 0, T0_US, [2]))
    story.trail().record(events.Lost(T0_US + 20, "shop", 0, 0, 2, 3))
    story.publish(after).deliver(new, after)
    proof = story.prove()
    assert (proof.lost_by_store, proof.lost.count, proof.delivered) == (1, 0, 3)
    assert proof.ok


def test_what_came_in_the_place_of_a_forgotten_message_can_be_lost(story: Story) -> None:
    gone, early = Delivery("gone", 3, None, offset=2), Delivery("early", 1, None, offset=1)
    story.publish(early, gone)
    story.trail("producer").record(events.Published(T0_US + 10, "shop", 0, ["new"], 0, T0_US, [2]))
    story.trail().record(events.Lost(T0_US + 20, "shop", 0, 0, 2, 3))
    story.trail("producer").record(events.Published(T0_US + 30, "shop", 0, ["late"], 0, T0_US, [3]))
    proof = story.prove()
    assert proof.lost_by_store == 1
    assert set(proof.lost.examples) == {"shop/early", "shop/late", "shop/new"}


def test_what_is_read_again_after_a_store_has_lost_messages_is_no_duplicate(story: Story) -> None:
    once = [Delivery(f"m{i}", 10 * i, 10 * i + 1, offset=i) for i in range(5)]
    again = [dataclasses.replace(d, start=d.start + 100, end=(d.end or 0) + 100) for d in once[2:]]
    story.publish(*once).deliver(*once)
    story.trail().record(events.Lost(T0_US + 90 * MS, "shop", 0, 0, 3, 5))
    proof = story.deliver(*again).prove()
    assert proof.duplicates.count == 1, "what was before the loss was finished"


def test_a_repeat_of_what_lies_behind_the_lost_messages_is_a_duplicate(story: Story) -> None:
    once = Delivery("m", 10, 11, offset=5)
    story.publish(once).deliver(once)
    story.trail().record(events.Lost(T0_US + 50 * MS, "shop", 0, 0, 3, 5))
    assert story.deliver(dataclasses.replace(once, start=100, end=101)).prove().duplicates.count == 1


# --------------------------------------------------------------------------- what is asked of each alone (O, M, T)


def test_starts_before_owning_and_after_a_release_are_found(story: Story) -> None:
    deliveries = clean()
    story.own("host", 5).publish(*deliveries).deliver(*deliveries)
    story.trail().record(events.Released(T0_US + 150 * MS, "shop", 0, 1))
    proof = story.prove()
    assert broken(proof) == "O"
    assert proof.owners.examples == (
        "shop/0: host started 0.003000 s before it owned the group under epoch 1",
        "shop/0: host started 0.042000 s after it had let go of the group under epoch 1",
    )


@pytest.mark.parametrize(("taken", "found"), [("shop/0", 0), ("shop/1", 1), (None, 1)])
def test_only_a_crash_in_its_own_group_excuses_that_a_retry_is_started_twice(
    story: Story, taken: str | None, found: int
) -> None:
    """`taken`: the group that one host takes from another, which had not let go of it."""
    fails = Delivery("a", 10, 20, outcome="retried")
    again = Delivery("a", 500, None, 499, offset=-1, attempt=2)
    story.publish(fails).deliver(fails, again, dataclasses.replace(again, start=600, end=610))
    if taken is not None:
        story.trail("former").record(events.Owned(T0_US, *parts_of(taken), 1))
        story.trail("later").record(events.Owned(T0_US + 700 * MS, *parts_of(taken), 2))
    assert story.prove().deliveries.count == found


def test_an_owner_that_no_record_names_is_found(story: Story) -> None:
    proof = tell(story.own("host", None), clean())
    assert (broken(proof), proof.owners.count) == ("O", 1)


@pytest.mark.parametrize(("takes_ms", "found"), [(-50, 1), (-48, 0), (300, 0)])
def test_two_owners_at_a_time_are_found_beyond_the_difference_of_their_clocks(
    story: Story, takes_ms: float, found: int
) -> None:
    deliveries = clean()
    story.publish(*deliveries).deliver(*deliveries).own("other", takes_ms)
    story.trail().record(events.Released(T0_US + 201 * MS, "shop", 0, 1))
    assert story.prove().owners.count == found


def test_two_messages_at_one_offset_are_found_unless_the_store_had_lost_the_first(story: Story) -> None:
    deliveries = [*clean(), Delivery("other", 300, 301, 299, "other", offset=3)]
    proof = tell(story, deliveries)
    assert broken(proof) == "M"
    assert proof.offsets.examples == ("m6 and other were both published at offset 3 of shop/0, priority 0",)
    again = Story(story.directory / "again")
    again.publish(*deliveries).deliver(*deliveries)
    again.trail().record(events.Lost(T0_US + 250 * MS, "shop", 0, 0, 3, 4))
    assert again.prove().ok


@pytest.mark.parametrize(("priority", "lost", "found"), [(0, 3, 0), (0, 5, 1), (1, 3, 1)])
def test_only_a_loss_of_its_own_queue_and_place_gives_an_offset_out_again(
    story: Story, priority: int, lost: int, found: int
) -> None:
    story.publish(Delivery("first", 1, 2, offset=3), Delivery("second", 3, 4, offset=3))
    story.trail().record(events.Lost(T0_US, "shop", 0, priority, lost, lost + 1))
    assert story.prove(Expectations()).offsets.count == found


def test_a_high_message_that_waits_in_the_store_while_lows_start_is_found(story: Story) -> None:
    lows = [Delivery(f"low{i}", 1000 * i, 1000 * i + 5, 1000 * i - 1, priority=1, offset=i) for i in range(12)]

    def told(name: str, ready: float, **more: Any) -> int:
        own = Story(story.directory / name)
        high = Delivery("high", ready + 1, ready + 2, ready, offset=0, **more)
        return tell(own, [*lows, high]).priority_inversions.count

    assert told("long", 10_500) == 4  # those of the seconds 6 to 9
    assert told("short", 5_900) == 0
    assert told("keyed", 10_500, key="k") == 0


def test_a_new_owner_has_time_to_read_what_has_long_waited(story: Story) -> None:
    lows = [Delivery(f"low{i}", 100 * i, 100 * i + 5, 100 * i - 1, priority=1, offset=i) for i in range(40)]
    high = Delivery("high", 4001, 4002, 4000, offset=0)
    story.trail("producer").record(events.Published(T0_US - 10**8, "shop", 0, ["high"], 0, T0_US - 10**8, [0]))
    m = high.message()
    m.published_us = T0_US - 10**8
    story.publish(*lows).deliver(*lows)
    story.trail().started(m, 1)
    story.trail().settled(m, T0_US + 4_002 * MS)
    assert story.prove().ok


def test_two_of_a_slot_at_a_time_are_found_where_its_messages_run_one_by_one(story: Story) -> None:
    deliveries = [Delivery("a", 10, 20), Delivery("b", 19, 30, offset=1), Delivery("c", 30, 40, offset=2)]
    proof = tell(story, deliveries, Expectations(still_queued=0, serial=["shop"]))
    assert (broken(proof), proof.key_order.count) == ("K", 1)
    assert prove(story.directory).ok


def test_what_contradicts_itself_proves_nothing(story: Story) -> None:
    deliveries = clean()
    story.publish(*deliveries).deliver(*deliveries[:-1])
    story.trail().settled(deliveries[-1].message(), T0_US + 300 * MS)
    proof = story.prove()
    assert proof.void_reasons == (
        "ended without a start: 1 deliveries (shop/m19 was settled by host, and attempt 1 was never started)",
    )


def test_what_was_dropped_although_its_topic_refuses_instead_is_lost(story: Story) -> None:
    deliveries = clean()
    story.publish(*deliveries).deliver(*deliveries[2:])
    story.trail().record(events.Dropped(T0_US, "shop", 0, 0, 0, 1))
    story.trail().record(events.Dropped(T0_US, "shop", 0, 1, 0, 1, "deleted"))
    proof = story.prove(Expectations(still_queued=0, rejects=["shop"]))
    assert broken(proof) == "L"
    assert proof.lost.examples == ("offsets 0 to 1 of shop/0 were dropped, and the topic refuses what is too much",)
    assert prove(story.directory).ok


# -------------------------------------------------------------------------------------------------- segments and rows


def _changed(path: Path, change: Callable[[Any], Any]) -> None:
    with pq.ParquetFile(path) as file:
        header, table = segments.Header.decode(file.schema_arrow.metadata), file.read()
    segments.write(path.parent, header, change(table))


def test_one_bit_flipped_in_a_page_voids(ledger: Path) -> None:
    path = host_segment(ledger, 2)
    with pq.ParquetFile(path) as file:
        header, table = segments.Header.decode(file.schema_arrow.metadata), file.read()
        place = file.metadata.row_group(0).column(1).data_page_offset
    pq.write_table(table.replace_schema_metadata(header.encode()), path, compression="none", write_page_checksum=True)
    with pq.ParquetFile(path) as file:
        column = file.metadata.row_group(0).column(1)
        place = column.data_page_offset + column.total_compressed_size // 2
    assert prove(ledger).ok
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    [first, *_] = reasons(ledger)
    assert first.startswith(f"{path.name}: truncated or damaged")
    assert "\n" not in first


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


def test_rows_that_are_not_of_their_segment_s_time_void(ledger: Path) -> None:
    def change(table: Any) -> Any:
        i = table.schema.names.index("time_us")
        return table.set_column(i, "time_us", pc.add(table["time_us"], 1_000_000))

    _changed(host_segment(ledger, 2), change)
    assert "its rows are of" in reasons(ledger)[0]


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
