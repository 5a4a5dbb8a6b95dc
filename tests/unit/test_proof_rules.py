"""The proof of K, O, M, P and of the ids of sorted topics, beyond what `test_proof_hostile.py` plants."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import pytest

from emq.trail import events
from emq_proof import checks, lives, priorities
from emq_proof.proof import Expectations, prove
from support.trail_story import CONTENT, MS, T0_US, Delivery, Story, broken, cut_short, tell


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


# --------------------------------------------------------------------------------------------------------- K: key order


def test_a_loss_that_was_noticed_before_excuses_no_disorder(story: Story) -> None:
    deliveries = [Delivery("a", 10, 11, key="k", offset=2), Delivery("b", 20, 21, key="k", offset=1)]
    story.publish(*deliveries).own("host", 1)
    story.trail().record(events.Lost(T0_US + 5 * MS, "shop", 0, 0, 5, 6))
    proof = story.deliver(*deliveries).prove()
    assert proof.key_order.examples == ("shop/b (offset 1) of key 'k' was started after shop/a (offset 2)",)


def test_two_of_a_slot_at_a_time_are_found_where_its_messages_run_one_by_one(story: Story) -> None:
    deliveries = [Delivery("a", 10, 20), Delivery("b", 19, 30, offset=1), Delivery("c", 30, 40, offset=2)]
    proof = tell(story, deliveries, Expectations(still_queued=0, serial=["shop"]))
    assert (broken(proof), proof.key_order.count) == ("K", 1)
    assert prove(story.directory).ok


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


@pytest.mark.parametrize(("last_ms", "found"), [(1_010, 0), (1_030, 1)])
def test_a_failure_that_a_killed_host_had_no_answer_for_ends_its_delivery(
    story: Story, last_ms: float, found: int
) -> None:
    """The next message of the slot started at 20 ms; "a" may have failed in the last second of the trail."""
    deliveries = [Delivery("a", 10, None), Delivery("b", 20, 21, offset=1), Delivery("c", last_ms, last_ms, offset=2)]
    story.publish(*deliveries).deliver(*deliveries).trail().flush()
    cut_short(story)
    assert prove(story.directory, Expectations(serial=["shop"])).key_order.count == found


@pytest.mark.parametrize(("at_ms", "found"), [(15, 0), (5, 1), (25, 1), (None, 1)])
def test_the_order_of_a_key_begins_again_when_the_store_forgets_its_queue(
    story: Story, at_ms: float | None, found: int
) -> None:
    deliveries = [Delivery("a", 10, 11, key="k", offset=2), Delivery("b", 20, 21, key="k", offset=1)]
    story.publish(*deliveries).own("host", 1)
    forgets(story, at_ms)
    assert story.deliver(*deliveries).prove().key_order.count == found


@pytest.mark.parametrize("again", [True, False])
def test_a_key_that_was_started_before_its_queue_was_forgotten_passed_over_nothing_after(
    story: Story, again: bool
) -> None:
    started = Delivery("a", 10, 11, key="k", offset=2)
    story.publish(started, Delivery("b", 0, 0, key="k", offset=1)).own("host", 1)
    forgets(story, 15 if again else None)
    proof = story.deliver(started).prove(Expectations(still_queued=1))
    assert proof.key_order.count == (0 if again else 1)


def test_a_loss_behind_a_message_does_not_excuse_that_its_key_passed_it_over(story: Story) -> None:
    started = Delivery("a", 10, 11, key="k", offset=2)
    story.publish(started, Delivery("b", 0, 0, key="k", offset=1)).own("host", 1)
    story.trail().record(events.Lost(T0_US + 15 * MS, "shop", 0, 0, 5, 6))
    assert story.deliver(started).prove(Expectations(still_queued=1)).key_order.count == 1


# ------------------------------------------------------------------------------------------ O and M: owners and offsets


def forgets(story: Story, at_ms: float | None, priority: int = 0) -> None:
    """Let the leader record that the store forgot the queue, whose offsets ended at 9."""
    if at_ms is not None:
        story.trail("leader").record(events.Forgotten(T0_US + round(at_ms * MS), "shop", 0, priority, 1, 9))


@pytest.mark.parametrize(("at_ms", "priority", "found"), [(5_000, 0, 0), (5_000, 1, 1), (-5_000, 0, 1), (None, 0, 1)])
def test_a_queue_that_the_store_forgot_gives_its_offsets_out_again(
    story: Story, at_ms: float | None, priority: int, found: int
) -> None:
    """The first message was published before the store forgot the queue, the second one at the same offset after."""
    story.publish(Delivery("first", 1, 2, offset=3))
    again = events.Published(T0_US + 10_000 * MS, "shop", 0, ["second"], 0, T0_US + 10_000 * MS, [3], [None])
    story.trail("producer").record(again)
    forgets(story, at_ms, priority)
    assert story.prove(Expectations()).offsets.count == found


@pytest.mark.parametrize(("at_ms", "found"), [(500, 0), (5, 1), (None, 1)])
def test_an_owner_before_and_after_its_queue_was_forgotten_passed_over_nothing(
    story: Story, at_ms: float | None, found: int
) -> None:
    """One host has the group all the time. Its successor goes on below an offset from before."""
    before = [Delivery("a", 10, 11, offset=7), Delivery("b", 20, 21, offset=8)]
    after = [Delivery("c", 1_000, 1_001, offset=1), Delivery("d", 1_100, 1_101, offset=2, source="successor")]
    story.publish(*before, *after).own("host", 1)
    forgets(story, at_ms)
    story.deliver(*before, *after)
    story.trail().record(events.Released(T0_US + 1_050 * MS, "shop", 0, 1))
    proof = story.prove()
    assert sum("below it" in example for example in proof.owners.examples) == found


@pytest.mark.parametrize(("priority", "lost", "found"), [(0, 3, 0), (0, 5, 1), (1, 3, 1)])
def test_only_a_loss_of_its_own_queue_and_place_gives_an_offset_out_again(
    story: Story, priority: int, lost: int, found: int
) -> None:
    story.publish(Delivery("first", 1, 2, offset=3), Delivery("second", 3, 4, offset=3))
    story.trail().record(events.Lost(T0_US, "shop", 0, priority, lost, lost + 1))
    assert story.prove(Expectations()).offsets.count == found


# ---------------------------------------------------------------------------------------------------------- P: priority


HIGH_READY_AT_10 = Delivery("high", 30, 31, ready=10, offset=7)


def low(start: float, **changes: object) -> Delivery:
    return dataclasses.replace(Delivery("low", start, start + 1, ready=1, priority=1, offset=1), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(("start", "found"), [(9, 0), (10, 0), (10.001, 1), (29.999, 1), (30, 0), (31, 0)])
def test_one_inversion_is_found(story: Story, start: float, found: int) -> None:
    proof = tell(story, [low(start), HIGH_READY_AT_10])
    assert proof.priority_inversions.count == found
    assert broken(proof) == "P" * found


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


def test_a_high_message_that_waits_in_the_store_while_lows_start_is_found(story: Story) -> None:
    lows = [Delivery(f"low{i}", 1000 * i, 1000 * i + 5, 1000 * i - 1, priority=1, offset=i) for i in range(12)]

    def told(name: str, ready: float, **more: Any) -> int:
        own = Story(story.directory / name)
        high = Delivery("high", ready + 1, ready + 2, ready, offset=0, **more)
        return tell(own, [*lows, high]).priority_inversions.count

    assert told("long", 10_500) == 4  # those of the seconds 6 to 9
    assert told("short", 5_900) == 0
    assert told("keyed", 10_500, key="k") == 0


# ------------------------------------------------------------------------------------------------- ids of sorted topics


def publish_content(story: Story, *times_ms: int) -> None:
    for ms in times_ms:
        published = events.Published(T0_US + (ms + 1) * MS, "shop", 0, [CONTENT], 0, T0_US + ms * MS)
        story.trail("producer").record(published)


def test_an_id_that_dies_after_each_publish_is_one_dead_letter(story: Story) -> None:
    publish_content(story, 0, 100)
    for ms in (10, 110):
        story.deliver(Delivery(CONTENT, ms, ms + 10, ready=ms - 1, offset=-1, outcome="dead"))
    proof = story.prove()
    assert (proof.ok, proof.dead) == (True, 1)


@pytest.mark.parametrize(("ended", "found"), [("~5", 0), ("~6", 1), ("", 1)])
def test_the_end_of_a_copy_needs_its_own_start_or_that_of_the_message_that_moved(
    story: Story, ended: str, found: int
) -> None:
    publish_content(story, 0)
    running = Delivery(f"{CONTENT}~5", 100, None, ready=99, offset=-1, attempt=2)
    story.deliver(running)
    m = dataclasses.replace(running, id=CONTENT + ended).message()
    story.trail().settled(m, T0_US + 110 * MS)
    told = [reason for reason in story.prove().void_reasons if "without a start" in reason]
    assert len(told) == found, told


def test_surplus_ends_are_those_that_no_publish_before_them_allows() -> None:
    assert [lives.surplus(1, [], reaches) for reaches in ([], [5], [5, 5], [5, 6, 7])] == [0, 0, 1, 2]
    assert lives.surplus(1, [10], [5, 10]) == lives.surplus(1, [10], [10, 11]) == 0
    assert lives.surplus(1, [10], [5, 9, 11]) == 1


def test_a_sweep_over_priorities_holds_no_more_where_more_keys_are_done_and_more_messages_wait_in_the_store() -> None:
    def held(messages: int) -> int:
        sweep = priorities.Sweep()
        for n in range(messages):
            begun = priorities.Step(n, priorities.STARTS, f"k{n:06}", f"key {n:06}", 0, n + 1, n + 1)
            for what in (priorities.READY, priorities.LEAVES, priorities.STARTS, priorities.FINISHES):
                sweep.overtaken(begun._replace(what=what))
        for n in range(messages):
            sweep.overtaken(priorities.Step(10**6 + n, priorities.STORED, f"m{n:06}", None, 0, 10**7 + n, None))
        low = priorities.Step(10**7, priorities.STARTS, "low", None, 1, 10**8, None)
        assert sweep.overtaken(low) == (f"m{messages - 1:06}", 0)
        assert sweep.overtaken(low._replace(time_us=10**7 + messages)) is None
        return len(pickle.dumps(sweep))

    assert held(10_000) == held(10)


def test_a_life_holds_no_more_where_more_publishes_merge() -> None:
    def held(merges: int) -> int:
        life = lives.Life(slack_us=5)
        for n in range(merges):
            step = lives.Step(events.MERGED, 10**6 + n, "t/m", "t/m", "p", None, None, 10**6 + n)
            life.add(step)
        assert life.is_open
        assert life.merged_us == 10**6 + merges - 1
        return len(pickle.dumps(life))

    assert held(10_000) == held(10)


@pytest.mark.parametrize("ready_us", [None, 0], ids=["not recorded", "unknown"])
def test_a_start_without_the_time_at_which_it_was_ready_overtakes_and_is_overtaken_by_nothing(ready_us: Any) -> None:
    low = checks.Start(T0_US, "t/0", "t", 1, 0, "t/low", None, 1, "host", ready_us, T0_US)
    high = low._replace(time_us=T0_US + 1, priority=0, offset=1, name="t/high")
    assert not priorities.inversions([low, high], [], None)
    assert priorities.inversions([low, high._replace(ready_us=-1)], [], None)  # a place among starts, in a simulation
