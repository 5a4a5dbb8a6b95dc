"""Faults that a hostile reader plants in a trail, each with the verdict that the proof owes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from emq.trail import events
from support.hostile.told import CONTENT, NEXT, REJECTED, Told, at

Planter = Callable[[Told], Any]
VOID = "void"


def own_ids_with_a_tilde_and_one_is_lost(t: Told) -> None:
    t.publish("order")
    t.publish("order~1", offset=1)
    t.end(t.start("order~1", 10, 1), 20, events.RETRIED, due_ms=at(30) // 1000)
    t.deliver("order~1", 40, -1, attempt=2)


def own_ids_with_a_tilde_run_at_one_time(t: Told) -> None:
    t.message("order~1", 10, took=20, key="k")
    t.message("order~2", 20, 1, took=20, key="k")


def published_twice_by_the_record_and_settled_after_a_move(t: Told) -> None:
    t.publish("a")
    t.publish("a", published_us=at(-5))
    t.deliver("a", 10)
    t.move(100, 200)
    t.deliver("a", 300, **NEXT)


def one_owner_reads_an_offset_again(t: Told) -> None:
    t.message("a", 10)
    t.start("a", 500)


def settled_and_started_again_after_a_clean_move(t: Told) -> None:
    t.message("a", 10)
    t.move(100, 500)
    t.end(t.start("a", 600, **NEXT), 610, events.RETRIED, due_ms=at(620) // 1000)


def recalled_and_delivered(t: Told) -> None:
    t.publish("a", offset=None, due_ms=at(5000) // 1000)
    t.add(events.RECALLED, 100, "cli", priority=0, id="a")
    t.deliver("a", 5000, -1)


def replayed_twice_for_one_death(t: Told) -> None:
    t.die("a")
    for ms in (400, 800):
        t.add(events.REPLAYED, ms, "cli", priority=0, id="a")
    t.end(t.start("a", 1200, -1), 1210, events.DEAD, reason=REJECTED)
    t.end(t.start("a", 2000, -1, attempt=2), 2010, events.DEAD, reason=REJECTED)


def a_failure_that_is_not_counted(t: Told) -> None:
    t.retry("a", 30)
    t.deliver("a", 40, -1, attempt=1)


def put_back_after_its_last_attempt(t: Told) -> None:
    t.retry("a", 30)
    t.end(t.start("a", 40, -1, attempt=2), 50, events.RETRIED, due_ms=at(60) // 1000)
    t.end(t.start("a", 70, -1, attempt=3), 80, events.RETRIED, due_ms=at(90) // 1000)


def a_high_one_is_never_started(t: Told) -> None:
    t.publish("high")
    for i in range(20):
        t.message(f"low{i}", 1000 * i, i, priority=1)


def a_key_s_first_is_never_started(t: Told) -> None:
    t.publish("first", key="k")
    for i in (1, 2):
        t.message(f"m{i}", 1000 * i, i, key="k")


def started_without_its_key(t: Told) -> None:
    for i in (0, 1):
        t.publish(f"m{i}", offset=i, key="k")
        t.deliver(f"m{i}", 10 + 5 * i, i, took=10)


def a_content_started_before_it_is_due(t: Told) -> None:
    t.publish(CONTENT, offset=None, due_ms=at(2000) // 1000)
    t.deliver(CONTENT, 1000, -1, published_us=None)


def a_content_s_second_time_comes_too_early(t: Told) -> None:
    t.publish(CONTENT, offset=None, due_ms=at(100) // 1000)
    t.deliver(CONTENT, 110, -1, published_us=None)
    t.publish(CONTENT, 1000, offset=None, due_ms=at(9000) // 1000)
    t.deliver(CONTENT, 3000, -1, published_us=None)


def a_content_merged_and_lost(t: Told) -> None:
    t.publish(CONTENT, offset=None)
    t.deliver(CONTENT, 100, -1, published_us=None)
    t.add(events.MERGED, 2000, "producer", id=CONTENT, published_us=at(2000))


def dropped_before_it_was_there(t: Told) -> None:
    t.publish("a", 5000, offset=3)
    t.add(events.DROPPED, 100, priority=0, offset=0, until=10, reason="max_length")


def expired_without_a_time_to_live(t: Told) -> None:
    t.publish("a")
    t.add(events.DEAD, 1000, id="a", offset=0, priority=0, attempt=1, reason=events.EXPIRED)


def a_clock_that_is_a_minute_behind(t: Told) -> None:
    t.nobody_owns()
    t.own(-70_000)
    t.message("a", -60_000)


def one_lost_and_one_settled_twice(t: Told) -> None:
    """The sum of settles is right."""
    t.publish("a")
    t.message("b", 10, 1)
    t.move(100, 200)
    t.deliver("b", 300, 1, **NEXT)


def two_hosts_start_a_smooth_second_each(t: Told) -> None:
    t.nobody_owns()
    for i, source in enumerate(("host", "next")):
        t.own(-10 + i, source, i + 1)
        for n in range(10):
            t.message(f"m{i}-{n}", 100 * n + 10, 10 * i + n, source=source, epoch=i + 1)


def three_hosts_start_a_second_each(t: Told) -> None:
    t.nobody_owns()
    for i, source in enumerate(("host", "next", "third")):
        t.own(-10 + i, source, i + 1)
        for n in range(30):
            t.message(f"m{i}-{n}", 100 * n + i, 30 * i + n, source=source, epoch=i + 1)


def a_weighted_topic_runs_two_of_a_key(t: Told) -> None:
    t.message("low", 10, took=20, key="k", priority=1)
    t.message("high", 20, 0, key="k", priority=0)


def a_replay_overlaps_its_key(t: Told) -> None:
    t.die("a", key="k")
    t.publish("b", offset=1, key="k")
    t.deliver("b", 500, 1, took=500, key="k")
    t.add(events.REPLAYED, 600, "cli", priority=0, id="a")
    t.deliver("a", 700, -1, key="k")


def one_of_a_batch_is_ended_by_none(t: Told) -> None:
    for i in range(5):
        t.publish(f"m{i}", offset=i)
        start = t.start(f"m{i}", 10, i)
        if i != 3:
            t.end(start, 20)
    t.deliver("m3", 2000, 3, attempt=2)


# ----------------------------------------------------------------------------------- what began before the trail began


def replayed_from_before_the_trail_and_lost(t: Told) -> None:
    t.add(events.REPLAYED, 100, "cli", priority=0, id="old")


def put_back_from_before_the_trail_and_lost(t: Told) -> None:
    t.end(t.start("old", 10), 20, events.RETRIED, due_ms=at(30) // 1000)


def started_from_before_the_trail_and_never_ended(t: Told) -> None:
    t.start("old", 10)
    t.release(500)


def recalled_published_again_and_lost(t: Told) -> None:
    t.publish(CONTENT, offset=None, due_ms=at(5000) // 1000)
    t.add(events.RECALLED, 100, "cli", priority=0, id=CONTENT)
    t.publish(CONTENT, 1000, offset=None)


def a_content_that_moved_to_its_lane_is_lost(t: Told) -> None:
    t.publish(CONTENT, offset=None)
    t.end(t.start(CONTENT, 10, -1, published_us=None), 20, events.RETRIED, id=f"{CONTENT}~5", due_ms=at(30) // 1000)


# ------------------------------------------------------------------------------------------- what came after a loss


def after_a_loss_an_owner_reads_an_offset_again(t: Told) -> None:
    t.add(events.LOST, 100, priority=0, offset=0, until=1)
    t.publish("a", 5000, offset=7)
    t.start("a", 5010, 7, published_us=at(5000))
    t.deliver("a", 6000, 7, published_us=at(5000))


def after_a_loss_one_is_settled_twice(t: Told) -> None:
    t.add(events.LOST, 100, priority=0, offset=0, until=5)
    t.publish("a", 2000, offset=3)
    t.deliver("a", 2010, 3, published_us=at(2000))
    t.move(3000, 4000)
    t.deliver("a", 5000, 3, **NEXT, published_us=at(2000))


# ----------------------------------------------------------------------------------------- what does not fit together


def a_content_settled_by_another_host(t: Told) -> None:
    t.publish(CONTENT, offset=None)
    t.end(t.start(CONTENT, 10, -1, published_us=None), 20, source="other")


# -------------------------------------------------------------------------------------- owners, keys and several groups


def an_epoch_that_goes_back(t: Told) -> None:
    t.nobody_owns()
    t.own(epoch=2)
    t.message("a", 10, epoch=2)
    t.release(500, epoch=2)
    t.own(1000, "next", 1)
    t.message("b", 2000, 1, source="next", epoch=1)


def a_host_goes_on_under_its_former_epoch(t: Told) -> None:
    t.own(500, epoch=2)
    t.message("a", 2000)


def a_key_s_next_overtakes_it_in_another_group(t: Told) -> None:
    """The number of groups has grown in between. Both are published by one producer, one after the other."""
    t.own(group=3)
    t.publish("first", 0, offset=4, key="k")
    t.publish("second", 1000, offset=0, key="k", group=3)
    t.deliver("second", 1010, 0, key="k", group=3, published_us=at(1000))
    t.deliver("first", 2000, 4, key="k", published_us=at(0))


def two_of_a_key_run_in_two_groups(t: Told) -> None:
    t.own(group=3)
    t.message("first", 10, 4, took=1000, key="k")
    t.message("second", 500, 0, key="k", group=3)


def groups_that_no_catalog_has_exceed_the_cap_of_their_topic(t: Told) -> None:
    t.nobody_owns()
    for group in (0, 7):
        t.own(group=group)
        for i in range(8):
            t.message(f"m{group}-{i}", 10 + i, i, group=group)


def a_retry_of_high_priority_is_passed_over_in_its_buffer(t: Told) -> None:
    t.retry("high", 1000)
    for i in range(8):
        t.message(f"low{i}", 2000 + i, i, priority=1)
    t.deliver("high", 3000, -1, attempt=2, ready_us=at(1500))


def a_replayed_content_dies_three_times(t: Told) -> None:
    for ms in (0, 1000):
        t.publish(CONTENT, ms, offset=None)
    for i in range(4):
        start = t.start(CONTENT, 100 + 1000 * i, -1, published_us=None)
        t.end(start, 110 + 1000 * i, events.DEAD, reason=REJECTED)
    t.add(events.REPLAYED, 1500, "cli", priority=0, id=CONTENT)


FAULTS: tuple[tuple[Planter, str, dict[str, Any]], ...] = (
    (own_ids_with_a_tilde_and_one_is_lost, "L", {}),
    (own_ids_with_a_tilde_run_at_one_time, "K", {}),
    (published_twice_by_the_record_and_settled_after_a_move, "D", {}),
    (one_owner_reads_an_offset_again, "DM", {}),
    (settled_and_started_again_after_a_clean_move, "D", {}),
    (recalled_and_delivered, "D", {}),
    (replayed_twice_for_one_death, "X", {}),
    (a_failure_that_is_not_counted, "X", {}),
    (put_back_after_its_last_attempt, "X", {"max_attempts": {"shop": 3}, "still_queued": ["a"]}),
    (a_high_one_is_never_started, "P", {"still_queued": ["high"]}),
    (a_key_s_first_is_never_started, "K", {"still_queued": ["first"]}),
    (started_without_its_key, "K", {}),
    (a_content_started_before_it_is_due, "T", {}),
    (a_content_s_second_time_comes_too_early, "T", {}),
    (a_content_merged_and_lost, "L", {}),
    (dropped_before_it_was_there, "L", {}),
    (expired_without_a_time_to_live, "T", {}),
    (a_clock_that_is_a_minute_behind, VOID, {}),
    (one_lost_and_one_settled_twice, "LD", {}),
    (two_hosts_start_a_smooth_second_each, "QO", {"quotas": {"shop/0": 10}, "bursts": {"shop/0": 2}}),
    (three_hosts_start_a_second_each, "QO", {"quotas": {"shop/0": 10}}),
    (a_weighted_topic_runs_two_of_a_key, "K", {"strict": ()}),
    (a_replay_overlaps_its_key, "K", {}),
    (one_of_a_batch_is_ended_by_none, "X", {}),
    (replayed_from_before_the_trail_and_lost, "L", {}),
    (put_back_from_before_the_trail_and_lost, "L", {}),
    (started_from_before_the_trail_and_never_ended, "L", {}),
    (recalled_published_again_and_lost, "L", {}),
    (a_content_that_moved_to_its_lane_is_lost, "L", {}),
    (after_a_loss_an_owner_reads_an_offset_again, "M", {}),
    (after_a_loss_one_is_settled_twice, "D", {}),
    (a_content_settled_by_another_host, VOID, {}),
    (an_epoch_that_goes_back, "O", {}),
    (a_host_goes_on_under_its_former_epoch, "O", {}),
    (a_key_s_next_overtakes_it_in_another_group, "K", {}),
    (two_of_a_key_run_in_two_groups, "K", {}),
    (groups_that_no_catalog_has_exceed_the_cap_of_their_topic, "Q", {"quotas": {"shop": 10, "shop/0": 10}}),
    (a_retry_of_high_priority_is_passed_over_in_its_buffer, "P", {}),
    (a_replayed_content_dies_three_times, "X", {}),
)
