"""The proof of L, D and X for the ids of sorted topics, which come back."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from emq.trail import events, lives
from emq.trail.proof import Expectations, Proof, prove
from support.trail_story import CONTENT, MS, T0_US, Delivery, Slot, Story, broken, tell


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


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
    m.uid = copy
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
    m.uid = f"{CONTENT}~5"
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
