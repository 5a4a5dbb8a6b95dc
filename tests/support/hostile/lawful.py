"""Oddities in a trail that break no promise."""

from __future__ import annotations

from typing import Any

from emq.trail import events
from support.hostile.faults import Planter
from support.hostile.told import CONTENT, NEXT, REJECTED, Told, at


def a_content_of_unknown_outcome_was_published(t: Told) -> None:
    t.publish(CONTENT, offset=None)
    t.deliver(CONTENT, 100, -1, published_us=None)
    t.add(events.DOUBTED, 1000, "producer", id=CONTENT, priority=0)
    t.deliver(CONTENT, 1500, -1, published_us=None)


def a_publish_of_unknown_outcome_is_repeated(t: Told) -> None:
    t.add(events.DOUBTED, -50, "producer", id="a", priority=0)
    t.publish("a", offset=1)
    t.deliver("a", 10, 0)
    t.deliver("a", 20, 1)


def a_key_s_next_starts_on_a_host_whose_clock_is_behind(t: Told) -> None:
    t.message("a", 100, took=100, key="k")
    t.move(210, 60)
    t.message("b", 90, 1, key="k", **NEXT)


def a_key_goes_on_at_a_clock_that_is_ahead_and_comes_back(t: Told) -> None:
    t.message("a", 300, 5, key="k")
    t.move(310, 120)
    t.message("b", 200, 6, key="k", **NEXT)


def a_retry_is_made_by_a_clock_that_is_behind(t: Told) -> None:
    t.publish("a")
    t.end(t.start("a", 180), 200, events.RETRIED, due_ms=at(200) // 1000)
    t.move(201, 50)
    t.deliver("a", 60, -1, attempt=2, **NEXT)


def a_replay_is_recorded_by_a_clock_that_is_behind(t: Told) -> None:
    t.publish("a")
    t.end(t.start("a", 180), 200, events.DEAD, reason=REJECTED)
    t.add(events.REPLAYED, 100, "cli", priority=0, id="a")
    t.deliver("a", 400, -1)


def a_smooth_group_moves_to_a_clock_that_is_behind(t: Told) -> None:
    for n in range(20):
        t.message(f"a{n}", 100 * n, n)
    t.move(1950, 1750)
    for n in range(20):
        t.message(f"b{n}", 1760 + 100 * n, 20 + n, **NEXT)


def a_group_moves_twice_between_three_clocks(t: Told) -> None:
    """Fifty a second, a second on each host; the first one's clock is ahead, the last one's behind."""
    t.nobody_owns()
    for i, (source, ahead_ms) in enumerate((("host", 120), ("next", 0), ("third", -120))):
        t.own(1000 * i - 5 + ahead_ms, source, i + 1)
        for n in range(50):
            ms = 1000 * i + 19 * n + ahead_ms
            t.message(f"m{i}-{n}", ms, 50 * i + n, source=source, epoch=i + 1, took=0.1)
        t.release(1000 * i + 990 + ahead_ms, source, i + 1)


def a_content_is_published_by_a_clock_that_is_ahead(t: Told) -> None:
    for ms in (0, 1000):
        t.publish(CONTENT, ms + 200, offset=None)
        t.deliver(CONTENT, ms + 60, -1, published_us=None)


def what_a_store_lost_is_read_again_and_dies(t: Told) -> None:
    t.publish("a")
    t.deliver("a", 10)
    t.move(90, 100)
    t.add(events.LOST, 110, "next", priority=0, offset=0, until=1)
    t.end(t.start("a", 500, **NEXT), 510, events.DEAD, reason=REJECTED)


def a_keyed_message_has_two_copies_after_a_crash(t: Told) -> None:
    """Its failure was not saved: it runs from its queue, and its copy in the lane waits for its key meanwhile."""
    t.publish("a", key="k")
    t.end(t.start("a", 10, key="k"), 20, events.RETRIED, due_ms=at(30) // 1000, key="k")
    t.own(1000, "next", 2)
    t.deliver("a", 1100, 0, took=500, key="k", **NEXT)
    t.message("low", 1300, 0, priority=1, **NEXT)
    t.deliver("a", 1700, -1, attempt=2, key="k", ready_us=at(1200), **NEXT)


def own_ids_with_a_tilde_are_tried_again(t: Told) -> None:
    for i in range(2):
        t.publish(f"order~{i}", offset=i)
        t.end(t.start(f"order~{i}", 10 + i, i), 20, events.RETRIED, due_ms=at(30) // 1000)
        t.deliver(f"order~{i}", 40 + i, -1, attempt=2)


def expired_at_the_very_border(t: Told) -> None:
    t.publish("a")
    t.add(events.DEAD, 500, id="a", offset=0, priority=0, attempt=1, reason=events.EXPIRED, until=at(500))
    t.message("b", 499.999, 1, until=at(500))


def the_asked_for_pause_is_kept_to_the_millisecond(t: Told) -> None:
    t.retry("a", 60_020)
    t.deliver("a", 60_020, -1, attempt=2)


def a_high_one_has_waited_for_less_than_it_takes_to_read(t: Told) -> None:
    for i in range(20):
        t.message(f"low{i}", 1000 * i, i, priority=1)
    t.publish("high", 14_500)


def a_high_one_was_finished_unseen_by_a_killed_host(t: Told) -> None:
    t.killed.add("host")
    t.publish("high")
    t.message("low", 10, 0, priority=1)
    t.own(2000, "next", 2)
    for i in range(1, 20):
        t.message(f"low{i}", 2000 + 1000 * i, i, priority=1, **NEXT)


def a_host_that_had_nothing_to_do(t: Told) -> None:
    t.message("a", 10)
    t.idle.add("idle")


def a_content_that_came_back_twice(t: Told) -> None:
    for ms in (0, 1000, 2000):
        t.publish(CONTENT, ms, offset=None, due_ms=at(ms + 500) // 1000)
        t.add(events.MERGED, ms + 100, "producer", id=CONTENT, published_us=at(ms + 100))
        t.deliver(CONTENT, ms + 500, -1, published_us=None)


def a_content_is_published_again_before_its_claimed_twins_start(t: Told) -> None:
    t.publish(CONTENT, offset=None, due_ms=at(100) // 1000)
    t.publish(CONTENT, 520, offset=None, due_ms=at(600) // 1000)
    t.deliver(CONTENT, 540, -1, published_us=None, ready_us=at(500))
    t.publish(CONTENT, 680, offset=None, due_ms=at(1000) // 1000)
    t.deliver(CONTENT, 700, -1, published_us=None, ready_us=at(650))
    t.deliver(CONTENT, 1010, -1, published_us=None, ready_us=at(1005))


def dead_replayed_and_recalled(t: Told) -> None:
    t.die("a", replayed_ms=400)
    t.add(events.RECALLED, 500, "cli", priority=0, id="a")


def replayed_from_before_the_trail_and_delivered(t: Told) -> None:
    t.add(events.REPLAYED, 100, "cli", priority=0, id="old")
    t.deliver("old", 200, -1)


def replayed_from_before_the_trail_and_recalled(t: Told) -> None:
    t.add(events.REPLAYED, 100, "cli", priority=0, id="old")
    t.add(events.RECALLED, 200, "cli", priority=0, id="old")


def put_back_from_before_the_trail_and_waiting(t: Told) -> None:
    t.end(t.start("old", 10), 20, events.RETRIED, due_ms=at(60_000) // 1000)


def started_from_before_the_trail_and_ended_by_the_next_owner(t: Told) -> None:
    """The first owner did not wait any longer for its handler."""
    t.start("old", 10)
    t.move(500, 1000)
    t.deliver("old", 1500, **NEXT)


def a_lost_offset_is_given_out_again(t: Told) -> None:
    t.publish("gone", 0, offset=3)
    t.add(events.LOST, 100, priority=0, offset=3, until=4)
    t.publish("next", 2000, offset=3)
    t.deliver("next", 2010, 3, published_us=at(2000))


def a_lost_message_had_been_delivered_and_is_read_again(t: Told) -> None:
    """The store came back without it, and got it again from a replica; the owner goes back under its epoch."""
    t.publish("a", 0, offset=3)
    t.deliver("a", 10, 3)
    t.add(events.LOST, 100, priority=0, offset=2, until=4)
    t.deliver("a", 500, 3)


def a_host_takes_its_group_again_under_a_new_epoch(t: Told) -> None:
    t.message("a", 10)
    t.release(100)
    t.own(500, epoch=2)
    t.message("b", 2000, 1, epoch=2)


def a_key_goes_on_in_another_group(t: Told) -> None:
    """The number of groups has grown in between."""
    t.own(group=3)
    t.publish("first", 0, offset=4, key="k")
    t.publish("second", 1000, offset=0, key="k", group=3)
    t.deliver("first", 1500, 4, took=300, key="k", published_us=at(0))
    t.deliver("second", 1810, 0, key="k", group=3, published_us=at(1000))


def a_key_is_published_by_two_at_a_time(t: Told) -> None:
    """Neither publish was done when the other one began."""
    t.own(group=3)
    t.publish("first", 1200, offset=4, key="k", published_us=at(0))
    t.publish("second", 1100, offset=0, key="k", group=3, published_us=at(1000), source="another")
    t.deliver("second", 1300, 0, key="k", group=3, published_us=at(1000))
    t.deliver("first", 2000, 4, key="k", published_us=at(0))


def a_retry_of_a_key_comes_after_its_next_in_another_group(t: Told) -> None:
    t.own(group=3)
    t.publish("first", 0, offset=4, key="k")
    t.publish("second", 1000, offset=0, key="k", group=3)
    t.end(t.start("first", 1010, 4, key="k", published_us=at(0)), 1020, events.RETRIED, due_ms=at(1500) // 1000)
    t.deliver("second", 1030, 0, key="k", group=3, published_us=at(1000))
    t.deliver("first", 2000, -1, attempt=2, key="k", group=3, published_us=at(0))


def published_by_a_clock_that_is_a_little_ahead(t: Told) -> None:
    t.publish("a", 200)
    t.deliver("a", 60, published_us=at(200))


def a_content_expires_without_a_start(t: Told) -> None:
    t.publish(CONTENT, offset=None)
    t.add(events.DEAD, 1000, id=CONTENT, offset=-1, priority=0, attempt=1, reason=events.EXPIRED, until=at(900))


def a_content_fails_moves_to_its_lane_and_comes_back(t: Told) -> None:
    t.publish(CONTENT, offset=None)
    t.end(t.start(CONTENT, 10, -1, published_us=None), 20, events.RETRIED, id=f"{CONTENT}~5", due_ms=at(30) // 1000)
    t.deliver(f"{CONTENT}~5", 40, -1, attempt=2, published_us=None)
    t.publish(CONTENT, 1000, offset=None)
    t.deliver(CONTENT, 1010, -1, published_us=None)


def dead_from_its_queue_and_first_tried_again_from_its_lane(t: Told) -> None:
    t.die("a", replayed_ms=400)
    t.deliver("a", 800, -1)


LAWFUL: tuple[tuple[Planter, dict[str, Any]], ...] = (
    (a_content_of_unknown_outcome_was_published, {}),
    (a_publish_of_unknown_outcome_is_repeated, {}),
    (a_key_s_next_starts_on_a_host_whose_clock_is_behind, {}),
    (a_key_goes_on_at_a_clock_that_is_ahead_and_comes_back, {}),
    (a_retry_is_made_by_a_clock_that_is_behind, {}),
    (a_replay_is_recorded_by_a_clock_that_is_behind, {}),
    (a_smooth_group_moves_to_a_clock_that_is_behind, {"quotas": {"shop/0": 10}, "bursts": {"shop/0": 1}}),
    (a_group_moves_twice_between_three_clocks, {"quotas": {"shop/0": 50}}),
    (a_content_is_published_by_a_clock_that_is_ahead, {}),
    (what_a_store_lost_is_read_again_and_dies, {}),
    (a_keyed_message_has_two_copies_after_a_crash, {"duplicates_allowed": 1}),
    (own_ids_with_a_tilde_are_tried_again, {}),
    (expired_at_the_very_border, {}),
    (the_asked_for_pause_is_kept_to_the_millisecond, {}),
    (a_high_one_has_waited_for_less_than_it_takes_to_read, {"still_queued": ["high"]}),
    (a_host_that_had_nothing_to_do, {}),
    (a_content_that_came_back_twice, {}),
    (a_content_is_published_again_before_its_claimed_twins_start, {}),
    (dead_replayed_and_recalled, {}),
    (replayed_from_before_the_trail_and_delivered, {}),
    (replayed_from_before_the_trail_and_recalled, {}),
    (put_back_from_before_the_trail_and_waiting, {"still_queued": ["old"]}),
    (started_from_before_the_trail_and_ended_by_the_next_owner, {}),
    (a_lost_offset_is_given_out_again, {}),
    (a_lost_message_had_been_delivered_and_is_read_again, {}),
    (a_host_takes_its_group_again_under_a_new_epoch, {}),
    (a_key_goes_on_in_another_group, {}),
    (a_key_is_published_by_two_at_a_time, {}),
    (a_retry_of_a_key_comes_after_its_next_in_another_group, {}),
    (published_by_a_clock_that_is_a_little_ahead, {}),
    (a_content_expires_without_a_start, {}),
    (a_content_fails_moves_to_its_lane_and_comes_back, {}),
    (dead_from_its_queue_and_first_tried_again_from_its_lane, {}),
)
