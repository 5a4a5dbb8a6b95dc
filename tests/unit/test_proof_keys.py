"""The proof of K: messages of a key run one at a time, and first deliveries in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from emq.trail import events
from emq.trail.checks import MAX_EXAMPLES
from emq.trail.proof import Expectations, prove
from support.trail_story import MS, T0_US, Delivery, Story, broken, clean, cut_short, tell


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


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


def test_a_host_that_ended_in_order_has_ended_nothing_by_that(story: Story) -> None:
    story.deliver(Delivery("a", 10, None, key="k"))
    story.trail("successor").record(events.Owned(T0_US + 15 * MS, "shop", 0, 2))
    story.deliver(Delivery("b", 20, 21, key="k", offset=1, source="successor"))
    assert story.prove().key_order.count == 1


def test_two_of_a_slot_at_a_time_are_found_where_its_messages_run_one_by_one(story: Story) -> None:
    deliveries = [Delivery("a", 10, 20), Delivery("b", 19, 30, offset=1), Delivery("c", 30, 40, offset=2)]
    proof = tell(story, deliveries, Expectations(still_queued=0, serial=["shop"]))
    assert (broken(proof), proof.key_order.count) == ("K", 1)
    assert prove(story.directory).ok


@pytest.mark.parametrize(("last_ms", "found"), [(1_010, 0), (1_030, 1)])
def test_a_failure_that_a_killed_host_had_no_answer_for_ends_its_delivery(
    story: Story, last_ms: float, found: int
) -> None:
    """The next message of the slot started at 20 ms; "a" may have failed in the last second of the trail."""
    deliveries = [Delivery("a", 10, None), Delivery("b", 20, 21, offset=1), Delivery("c", last_ms, last_ms, offset=2)]
    story.publish(*deliveries).deliver(*deliveries).trail().flush()
    cut_short(story)
    assert prove(story.directory, Expectations(serial=["shop"])).key_order.count == found
