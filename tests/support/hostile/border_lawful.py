"""Lawful oddities exactly at each border, and what is given back, replayed or handed over."""

from __future__ import annotations

from typing import Any

from emq.trail import events
from support.hostile.border_faults import HALF, TEN, US, _busy
from support.hostile.faults import Planter
from support.hostile.told import CONTENT, NEXT, REJECTED, Told, at


def given_back_again_and_again(t: Told) -> None:
    t.publish("a", key="k")
    for ms in (10, 100, 200):
        t.end(t.start("a", ms, key="k"), ms + 5, events.RETURNED, reason="busy")
    t.deliver("a", 300, key="k")


def a_retry_is_given_back_and_started_by_the_next_owner(t: Told) -> None:
    t.retry("a", 30)
    t.end(t.start("a", 40, -1, attempt=2), 45, events.RETURNED, reason="busy")
    t.move(50, 500)
    t.deliver("a", 600, -1, attempt=2, **NEXT)


def a_content_is_given_back(t: Told) -> None:
    t.publish(CONTENT, offset=None)
    t.end(t.start(CONTENT, 10, -1, published_us=None), 20, events.RETURNED, reason="busy")
    t.deliver(CONTENT, 100, -1, published_us=None)


def started_as_it_takes_and_as_it_lets_go(t: Told) -> None:
    t.nobody_owns()
    t.own(10)
    t.message("a", 10)
    t.message("b", 100, 1)
    t.release(100)


def an_owner_that_starts_nothing_between_two_that_do(t: Told) -> None:
    t.message("a", 10)
    t.release(100)
    t.own(300, "idle", 2)
    t.release(400, "idle", 2)
    t.own(700, "next", 3)
    t.message("b", 800, 1, source="next", epoch=3)


def as_many_as_allowed_at_both_ends_of_a_second(t: Told) -> None:
    _busy(t, 9)
    t.message("last", 2000 - US, 9, took=US)
    t.message("next", 2000, 10, took=US)
    _busy(t, 9, 11, 2500)


def a_start_in_every_other_second(t: Told) -> None:
    for i in range(4):
        t.message(f"m{i}", 2000 * i + 1500, i, took=US)


def a_smooth_second_is_over_to_the_us(t: Told) -> None:
    _busy(t, 12)
    t.message("last", 2000, 12, took=US)


def a_delayed_one_starts_by_a_clock_that_is_ahead(t: Told) -> None:
    t.publish("a", offset=None, due_ms=at(5000) // 1000)
    t.deliver("a", 4_750, -1)


def expired_by_a_clock_that_is_ahead(t: Told) -> None:
    t.publish("a")
    t.add(events.DEAD, 500, id="a", offset=0, priority=0, attempt=1, reason=events.EXPIRED, until=at(750))


def a_retry_expires_in_its_lane(t: Told) -> None:
    t.publish("a")
    t.end(t.start("a", 10, until=at(5000)), 20, events.RETRIED, due_ms=at(9000) // 1000)
    t.add(events.DEAD, 9000, id="a", offset=-1, priority=0, attempt=2, reason=events.EXPIRED, until=at(5000))


def a_copy_is_tried_again_when_it_is_due(t: Told) -> None:
    t.publish(CONTENT, offset=None)
    start = t.start(CONTENT, 10, -1, published_us=None)
    t.end(start, 20, events.RETRIED, id=f"{CONTENT}~5", due_ms=at(60_020) // 1000)
    t.deliver(f"{CONTENT}~5", 60_020, -1, attempt=2, published_us=None)


def a_content_is_rejected(t: Told) -> None:
    t.publish(CONTENT, offset=None)
    t.end(t.start(CONTENT, 10, -1, published_us=None), 20, events.DEAD, reason=REJECTED)


def dead_of_what_could_not_be_read(t: Told) -> None:
    t.publish("a")
    t.add(events.DEAD, 10, id="a", offset=0, priority=0, attempt=1, reason=f"{events.UNFIT}not a message")


def replayed_twice_and_dead_three_times(t: Told) -> None:
    t.die("a")
    for ms in (1000, 2000):
        t.add(events.REPLAYED, ms, "cli", priority=0, id="a")
        t.end(t.start("a", ms + 500, -1), ms + 510, events.DEAD, reason=REJECTED)


def a_high_one_is_ready_as_a_low_one_starts(t: Told) -> None:
    t.message("high", 20, ready_us=at(10))
    t.message("low", 10, 0, priority=1)


def the_next_of_a_key_starts_as_the_first_ends(t: Told) -> None:
    t.message("a", 10, took=10, key="k")
    t.message("b", 20, 1, key="k")


def a_key_is_handed_over_to_a_clock_that_is_behind(t: Told) -> None:
    """By its own clock the next owner starts the second before the former owner starts the first."""
    t.message("first", 200, 0, key="k", took=2)
    t.move(205, 50)
    t.message("second", 100, 1, key="k", **NEXT)


def dropped_when_the_owner_had_it_already(t: Told) -> None:
    t.message("a", 10)
    t.add(events.DROPPED, 5, priority=0, offset=0, until=1, reason="max_length")


def recalled_while_its_host_did_not_know(t: Told) -> None:
    t.publish("a")
    t.add(events.RECALLED, 100, "cli", priority=0, id="a")
    t.deliver("a", 900)


def a_content_is_recalled_and_published_again(t: Told) -> None:
    t.publish(CONTENT, offset=None, due_ms=at(9000) // 1000)
    t.add(events.RECALLED, 100, "cli", priority=0, id=CONTENT)
    t.publish(CONTENT, 200, offset=None)
    t.deliver(CONTENT, 400, -1, published_us=None)


def a_content_is_recalled_while_its_twin_runs(t: Told) -> None:
    t.publish(CONTENT, offset=None)
    t.publish(CONTENT, 50, offset=None)
    t.add(events.RECALLED, 100, "cli", priority=0, id=CONTENT)
    t.deliver(CONTENT, 5000, -1, published_us=None, ready_us=at(10))


def recorded_by_its_publisher_after_it_was_started(t: Told) -> None:
    t.publish("a", 500, published_us=at(-5))
    t.deliver("a", 10)


def a_replay_of_a_delayed_one_is_recorded_by_a_clock_that_is_ahead(t: Told) -> None:
    t.publish("a", offset=None, due_ms=at(0) // 1000)
    t.end(t.start("a", 10, -1), 20, events.DEAD, reason=REJECTED)
    t.add(events.REPLAYED, 600, "cli", priority=0, id="a")
    t.deliver("a", 500, -1)


def one_waits_right_behind_a_hole(t: Told) -> None:
    t.add(events.SKIPPED, 100, priority=0, offset=0, until=3)
    t.publish("a", offset=3)


def a_retry_fails_at_once(t: Told) -> None:
    t.publish("a")
    t.end(t.start("a", 10), 10, events.RETRIED, due_ms=at(30) // 1000)
    t.end(t.start("a", 40, -1, attempt=2), 40, events.RETRIED, due_ms=at(60) // 1000)
    t.deliver("a", 70, -1, attempt=3)


def two_of_a_key_start_at_one_time_and_the_first_is_over_at_once(t: Told) -> None:
    t.message("low", 10, 0, took=20, key="k", priority=1)
    t.message("high", 10, 7, took=0, key="k")


BORDER_LAWFUL: tuple[tuple[Planter, dict[str, Any]], ...] = (
    (given_back_again_and_again, {}),
    (a_retry_is_given_back_and_started_by_the_next_owner, {}),
    (a_content_is_given_back, {}),
    (started_as_it_takes_and_as_it_lets_go, {}),
    (an_owner_that_starts_nothing_between_two_that_do, {}),
    (as_many_as_allowed_at_both_ends_of_a_second, {"quotas": TEN}),
    (a_start_in_every_other_second, {"quotas": HALF}),
    (a_smooth_second_is_over_to_the_us, {"quotas": {"shop/0": 10}, "bursts": {"shop/0": 2}}),
    (a_delayed_one_starts_by_a_clock_that_is_ahead, {}),
    (expired_by_a_clock_that_is_ahead, {}),
    (a_retry_expires_in_its_lane, {}),
    (a_copy_is_tried_again_when_it_is_due, {}),
    (a_content_is_rejected, {"max_attempts": {"shop": 3}}),
    (dead_of_what_could_not_be_read, {"max_attempts": {"shop": 3}}),
    (replayed_twice_and_dead_three_times, {}),
    (a_high_one_is_ready_as_a_low_one_starts, {}),
    (the_next_of_a_key_starts_as_the_first_ends, {}),
    (a_key_is_handed_over_to_a_clock_that_is_behind, {}),
    (dropped_when_the_owner_had_it_already, {}),
    (recalled_while_its_host_did_not_know, {}),
    (a_content_is_recalled_and_published_again, {}),
    (a_content_is_recalled_while_its_twin_runs, {}),
    (recorded_by_its_publisher_after_it_was_started, {}),
    (a_replay_of_a_delayed_one_is_recorded_by_a_clock_that_is_ahead, {}),
    (one_waits_right_behind_a_hole, {"still_queued": ["a"]}),
    (a_retry_fails_at_once, {}),
    (two_of_a_key_start_at_one_time_and_the_first_is_over_at_once, {}),
)
