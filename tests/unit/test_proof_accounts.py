"""The proof of L, D and X: each message ends, once, also where a host was killed or a store has lost something."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from emq.storage.names import parts_of
from emq.trail import events
from emq_proof.proof import Expectations, prove
from support.trail_story import MS, T0_US, Delivery, Story, broken, clean, cut_short, tell


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


def test_one_message_dropped_is_found(story: Story) -> None:
    deliveries = clean()
    deliveries[7].key = None
    proof = story.publish(*deliveries).deliver(*deliveries[:7], *deliveries[8:]).prove()
    assert broken(proof) == "L"
    assert (proof.lost.count, proof.unfinished) == (1, 0)
    assert "shop/m7" in proof.lost.examples[0]


def test_a_message_skipped_as_a_hole_is_lost_even_where_the_store_is_not_known(story: Story) -> None:
    deliveries = clean()
    story.publish(*deliveries).deliver(*deliveries[:7], *deliveries[8:])
    story.trail().record(events.Skipped(T0_US, "shop", 0, 1, 2, 5))
    proof = story.prove(Expectations(still_queued=None))
    assert (proof.lost.count, proof.lost.examples, proof.unfinished, proof.skipped) == (1, ("shop/m7",), 0, 3)


def test_one_message_delivered_twice_is_found_and_may_be_allowed(story: Story) -> None:
    again = Delivery("m3", 300, 305, 299, "k3", priority=1, offset=1, source="next")
    proof = tell(story, [*clean(), again])
    assert broken(proof) == "D"
    assert proof.duplicates.examples == ("shop/m3 settled 2 times",)
    assert prove(story.directory, Expectations(still_queued=0, duplicates_allowed=1)).ok


def test_deaths_of_messages_that_were_published_before_the_trail_began_count(story: Story) -> None:
    story.deliver(Delivery("a", 10, 11, outcome="dead"))
    for name in "bcd":  # they died before the trail began, too
        story.trail().record(events.Replayed(T0_US + 100 * MS, "shop", 0, 0, name))
    story.deliver(Delivery("b", 200, 201, offset=-1, outcome="dead"), Delivery("c", 210, 211, offset=-1))
    story.deliver(Delivery("d", 220, 221, offset=-1, outcome="dead"))
    story.trail().record(events.Replayed(T0_US + 300 * MS, "shop", 0, 0, "d"))
    proof = story.prove(Expectations(still_queued=["d"]))
    assert (proof.dead, proof.delivered, broken(proof)) == (2, 1, "")


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


def test_a_repeat_of_what_lies_behind_the_lost_messages_is_a_duplicate(story: Story) -> None:
    once = Delivery("m", 10, 11, offset=5)
    story.publish(once).deliver(once)
    story.trail().record(events.Lost(T0_US + 50 * MS, "shop", 0, 0, 3, 5))
    assert story.deliver(dataclasses.replace(once, start=100, end=101)).prove().duplicates.count == 1


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


def test_what_was_dropped_although_its_topic_refuses_instead_is_lost(story: Story) -> None:
    deliveries = clean()
    story.publish(*deliveries).deliver(*deliveries[2:])
    story.trail().record(events.Dropped(T0_US, "shop", 0, 0, 0, 1))
    story.trail().record(events.Dropped(T0_US, "shop", 0, 1, 0, 1, "deleted"))
    proof = story.prove(Expectations(still_queued=0, rejects=["shop"]))
    assert broken(proof) == "L"
    assert proof.lost.examples == (
        "offsets 0 to 1 of shop/0 were dropped, although the topic refuses new messages instead",
    )
    assert prove(story.directory).ok


def test_messages_dropped_or_recalled_on_purpose_are_not_lost(story: Story) -> None:
    deliveries = clean()
    story.publish(*deliveries).deliver(*deliveries[:7], *deliveries[10:])
    story.trail().record(events.Dropped(T0_US, "shop", 0, 1, 3, 4))
    story.trail().record(events.Dropped(T0_US, "shop", 0, 1, 4, 5))
    story.trail().record(events.Recalled(T0_US, "shop", 0, 0, "m8"))
    proof = story.prove()
    assert proof.ok, proof
    assert (proof.dropped, proof.delivered) == (3, 17)
