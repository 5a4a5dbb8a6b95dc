"""Faults at the borders of what is lawful: a microsecond, a hand-over, what is given back, and pairs of faults."""

from __future__ import annotations

from typing import Any

from emq.topics.shares import Share
from emq.trail import events
from support.hostile.faults import VOID, Planter
from support.hostile.told import CONTENT, NEXT, REJECTED, Told, at

US = 0.001


# ------------------------------------------------------------------------------------------- deliveries given back


def settled_and_given_back(t: Told) -> None:
    t.publish("a")
    start = t.start("a", 10)
    t.end(start, 20)
    t.end(start, 21, events.RETURNED, reason="busy")


def given_back_and_dead(t: Told) -> None:
    t.publish("a")
    start = t.start("a", 10)
    t.end(start, 20, events.RETURNED, reason="busy")
    t.end(start, 21, events.DEAD, reason=REJECTED)


def given_back_and_put_back(t: Told) -> None:
    t.publish("a")
    start = t.start("a", 10)
    t.end(start, 20, events.RETURNED, reason="busy")
    t.end(start, 20, events.RETRIED, due_ms=at(30) // 1000)
    t.deliver("a", 40, -1, attempt=2)


def given_back_by_another_host(t: Told) -> None:
    t.publish("a")
    t.end(t.start("a", 10), 20, events.RETURNED, source="other", reason="busy")
    t.move(30, 400)
    t.deliver("a", 500, **NEXT)


def given_back_without_a_start(t: Told) -> None:
    t.publish("a")
    start = t.start("a", 10, attempt=7)
    t.end(start, 20, events.RETURNED, reason="busy")
    t.rows.remove(start)
    t.deliver("a", 500)


def given_back_and_never_started_again(t: Told) -> None:
    t.publish("a")
    t.end(t.start("a", 10), 20, events.RETURNED, reason="busy")
    t.message("b", 30, 1)


# -------------------------------------------------------------------------------------------------------- owners


def started_between_two_releases(t: Told) -> None:
    t.message("a", 10)
    t.release(100)
    t.message("b", 150, 1)
    t.release(200)


def started_one_us_before_owning(t: Told) -> None:
    t.nobody_owns()
    t.own(10)
    t.message("a", 10 - US)


def started_one_us_after_its_release(t: Told) -> None:
    t.message("a", 10 + US)
    t.release(10)


def expired_by_a_host_that_never_had_the_group(t: Told) -> None:
    t.publish("a")
    expired = {"offset": 0, "priority": 0, "attempt": 1, "reason": events.EXPIRED}
    t.add(events.DEAD, 100, "stranger", id="a", until=at(50), **expired)


def skipped_by_a_host_that_never_had_the_group(t: Told) -> None:
    t.message("a", 10)
    t.add(events.SKIPPED, 100, "stranger", priority=0, offset=1, until=2)


def started_under_an_epoch_that_it_never_had(t: Told) -> None:
    t.nobody_owns()
    t.own(epoch=2)
    t.message("a", 10, epoch=1)


def two_owners_for_a_millisecond_more_than_clocks_differ(t: Told) -> None:
    t.own(100, "next", 2)
    t.message("b", 150, 1, **NEXT)
    t.message("a", 351)


def two_owners_take_the_same_group_at_the_first_second(t: Told) -> None:
    t.nobody_owns()
    t.own(0)
    t.own(0, "next", 1)
    t.message("a", 10)


def an_offset_behind_the_hand_over_is_started_by_the_next(t: Told) -> None:
    """By times that clocks could explain."""
    t.message("a", 10, 1)
    t.move(20, 25)
    t.message("b", 30, 0, **NEXT)


# ----------------------------------------------------------------------------------------------------------- caps


def _busy(t: Told, count: int, first: int = 0, ms: float = 1000, step: float = 10) -> None:
    for i in range(count):
        t.message(f"m{first + i}", ms + step * i, first + i, took=US)


def one_more_in_the_last_us_of_a_second(t: Told) -> None:
    _busy(t, 10)
    t.message("last", 2000 - US, 10, took=US)


def one_more_in_the_first_us_of_a_second(t: Told) -> None:
    t.message("first", 1000, 0, took=US)
    _busy(t, 10, 1, 1500)


def a_whole_start_in_each_second_of_half_a_start(t: Told) -> None:
    for i in range(4):
        t.message(f"m{i}", 1000 * i + 500, i, took=US)


def one_more_within_a_second_but_for_a_us(t: Told) -> None:
    _busy(t, 12)
    t.message("last", 2000 - US, 12, took=US)


def retries_count_too(t: Told) -> None:
    t.publish("a", offset=90)
    t.end(t.start("a", 500, 90), 510, events.RETRIED, due_ms=at(1000) // 1000)
    _busy(t, 10)
    t.deliver("a", 1900, -1, attempt=2)


def what_is_given_back_counts_too(t: Told) -> None:
    t.publish("a", offset=90)
    t.end(t.start("a", 1001, 90), 1002, events.RETURNED, reason="busy")
    _busy(t, 10, ms=1010)
    t.deliver("a", 2500, 90)


# -------------------------------------------------------------------------------------------------------- times


def tried_again_a_us_early(t: Told) -> None:
    t.retry("a", 10_000)
    t.deliver("a", 10_000 - US, -1, attempt=2)


def the_second_retry_is_too_early(t: Told) -> None:
    t.retry("a", 30)
    t.end(t.start("a", 40, -1, attempt=2), 50, events.RETRIED, due_ms=at(5_000) // 1000)
    t.deliver("a", 4_999, -1, attempt=3)


def a_delayed_one_starts_just_too_early(t: Told) -> None:
    t.publish("a", offset=None, due_ms=at(5000) // 1000)
    t.deliver("a", 4_749, -1)


def a_retry_expires_before_it_starts(t: Told) -> None:
    t.publish("a")
    t.end(t.start("a", 10, until=at(5000)), 20, events.RETRIED, due_ms=at(30) // 1000)
    t.deliver("a", 6000, -1, attempt=2, until=at(5000))


def a_copy_is_tried_again_too_early(t: Told) -> None:
    t.publish(CONTENT, offset=None)
    start = t.start(CONTENT, 10, -1, published_us=None)
    t.end(start, 20, events.RETRIED, id=f"{CONTENT}~5", due_ms=at(60_020) // 1000)
    t.deliver(f"{CONTENT}~5", 30_000, -1, attempt=2, published_us=None)


# ------------------------------------------------------------------------------------------------- dead letters


def died_of_what_only_begins_like_an_expiry(t: Told) -> None:
    t.publish("a")
    t.end(t.start("a", 10), 20, events.DEAD, reason="expired card")


def a_content_dies_before_its_attempts_are_used_up(t: Told) -> None:
    t.publish(CONTENT, offset=None)
    t.end(t.start(CONTENT, 10, -1, published_us=None), 20, events.DEAD, reason="no")


def dead_twice_by_one_delivery(t: Told) -> None:
    t.publish("a")
    start = t.start("a", 10)
    for ms in (20, 21):
        t.end(start, ms, events.DEAD, reason=REJECTED)


def one_replay_is_delivered_twice(t: Told) -> None:
    t.die("a", replayed_ms=400)
    for ms in (800, 1600):
        t.deliver("a", ms, -1)


def a_replay_begins_with_its_third_attempt(t: Told) -> None:
    t.die("a", replayed_ms=400)
    t.deliver("a", 800, -1, attempt=3)


def started_again_between_its_death_and_its_replay(t: Told) -> None:
    t.die("a")
    t.start("a", 500, -1, attempt=2)
    t.add(events.REPLAYED, 1400, "cli", priority=0, id="a")
    t.deliver("a", 1800, -1)


def a_replay_is_lost(t: Told) -> None:
    t.die("a", replayed_ms=400)


# --------------------------------------------------------------------------------------------- priorities and keys


def a_high_one_is_ready_a_us_before_a_low_one_starts(t: Told) -> None:
    t.message("high", 20, ready_us=at(10 - US))
    t.message("low", 10, 0, priority=1)


def a_replay_of_high_priority_is_passed_over_in_its_buffer(t: Told) -> None:
    t.die("high", replayed_ms=400)
    t.message("low", 800, 0, priority=1)
    t.deliver("high", 900, -1, ready_us=at(700))


def a_retry_loses_its_priority(t: Told) -> None:
    t.retry("a", 30)
    t.deliver("a", 40, -1, attempt=2, priority=1)


def a_replay_loses_its_priority(t: Told) -> None:
    t.die("a", replayed_ms=400)
    t.deliver("a", 800, -1, priority=2)


def a_retry_loses_its_key(t: Told) -> None:
    t.retry("a", 30, key="k")
    t.deliver("a", 40, -1, attempt=2)


def two_of_a_key_overlap_by_a_us(t: Told) -> None:
    t.message("a", 10, took=10, key="k")
    t.message("b", 20 - US, 1, key="k")


def a_retry_of_a_key_starts_while_the_next_runs(t: Told) -> None:
    t.retry("a", 30, key="k")
    t.message("b", 25, 1, key="k", took=50)
    t.deliver("a", 40, -1, attempt=2, key="k")


def a_given_back_one_of_a_key_runs_beside_the_next(t: Told) -> None:
    t.publish("a", key="k")
    t.end(t.start("a", 10, key="k"), 20, events.RETURNED, reason="busy")
    t.message("b", 25, 1, key="k", took=50)
    t.deliver("a", 40, 0, key="k")


def a_key_s_first_is_started_by_the_next_owner_only(t: Told) -> None:
    """Its second was started by the former owner; the times lie within what clocks may differ."""
    t.message("second", 100, 1, key="k", took=2)
    t.move(105, 110)
    t.message("first", 200, 0, key="k", **NEXT)


# ------------------------------------------------------------------------------------------------ places and pairs


def two_change_their_offsets(t: Told) -> None:
    for i, name in enumerate("ab"):
        t.publish(name, offset=i)
        t.deliver(name, 10 + i, 1 - i)


def two_change_their_groups(t: Told) -> None:
    t.nobody_owns()
    for group, name in enumerate("ab"):
        t.own(group=group)
        t.publish(name, group=group)
        t.deliver(name, 10, group=1 - group)


def two_change_their_priorities(t: Told) -> None:
    for i, name in enumerate("ab"):
        t.publish(name, priority=i)
    t.deliver("b", 10, priority=0)
    t.deliver("a", 20, priority=1)


def the_very_last_of_a_queue_is_lost(t: Told) -> None:
    for i in range(5):
        t.message(f"m{i}", 10 * i + 10, i)
    t.publish("last", offset=5)


def recalled_before_it_was_published_and_lost(t: Told) -> None:
    t.add(events.RECALLED, 100, "cli", priority=0, id="a")
    t.publish("a", 5000)


def expired_before_it_was_published_and_lost(t: Told) -> None:
    expired = {"offset": 0, "priority": 0, "attempt": 1, "reason": events.EXPIRED}
    t.add(events.DEAD, 100, id="a", until=at(50), **expired)
    t.publish("a", 5000)


def published_after_a_loss_was_noticed_and_lost(t: Told) -> None:
    t.add(events.LOST, 100, priority=0, offset=0, until=1)
    t.publish("a", 351)


def skipped_as_a_hole_to_its_last_offset(t: Told) -> None:
    t.add(events.SKIPPED, 100, priority=0, offset=0, until=3)
    t.publish("a", offset=2)


def a_content_is_recalled_and_delivered(t: Told) -> None:
    t.publish(CONTENT, offset=None, due_ms=at(9000) // 1000)
    t.add(events.RECALLED, 100, "cli", priority=0, id=CONTENT)
    t.deliver(CONTENT, 9000, -1, published_us=None)


def published_after_the_crash_it_misses_an_attempt(t: Told) -> None:
    """Its former owner did not let go of the group in order, and its successor had it long before."""
    t.message("x", 10)
    t.own(2000, "next", 2)
    t.publish("a", 3000, 1)
    t.deliver("a", 3010, 1, attempt=2, published_us=at(3000), **NEXT)


def over_before_the_crash_and_put_back_by_the_next(t: Told) -> None:
    """It was settled six seconds before its owner was heard of last."""
    t.message("a", 10)
    t.message("x", 6020, 1)
    t.own(7000, "next", 2)
    t.end(t.start("a", 7010, **NEXT), 7020, events.RETRIED, due_ms=at(7030) // 1000)
    t.deliver("a", 7040, -1, attempt=2, **NEXT)


TEN = {"shop": 10, "shop/0": 10}
HALF = {"shop/0": Share(1, 2, 0)}

BORDER_FAULTS: tuple[tuple[Planter, str, dict[str, Any]], ...] = (
    (settled_and_given_back, "D", {}),
    (given_back_and_dead, "X", {}),
    (given_back_and_put_back, VOID, {}),
    (given_back_by_another_host, "O", {}),
    (given_back_without_a_start, VOID, {}),
    (given_back_and_never_started_again, "L", {}),
    (started_between_two_releases, "O", {}),
    (started_one_us_before_owning, "O", {}),
    (started_one_us_after_its_release, "O", {}),
    (expired_by_a_host_that_never_had_the_group, "O", {}),
    (skipped_by_a_host_that_never_had_the_group, "O", {}),
    (started_under_an_epoch_that_it_never_had, "O", {}),
    (two_owners_for_a_millisecond_more_than_clocks_differ, "O", {}),
    (two_owners_take_the_same_group_at_the_first_second, "O", {}),
    (an_offset_behind_the_hand_over_is_started_by_the_next, "O", {}),
    (one_more_in_the_last_us_of_a_second, "Q", {"quotas": TEN}),
    (one_more_in_the_first_us_of_a_second, "Q", {"quotas": TEN}),
    (a_whole_start_in_each_second_of_half_a_start, "Q", {"quotas": HALF}),
    (one_more_within_a_second_but_for_a_us, "Q", {"quotas": {"shop/0": 10}, "bursts": {"shop/0": 2}}),
    (retries_count_too, "Q", {"quotas": TEN}),
    (what_is_given_back_counts_too, "Q", {"quotas": TEN}),
    (tried_again_a_us_early, "T", {}),
    (the_second_retry_is_too_early, "T", {}),
    (a_delayed_one_starts_just_too_early, "T", {}),
    (a_retry_expires_before_it_starts, "T", {}),
    (a_copy_is_tried_again_too_early, "T", {}),
    (died_of_what_only_begins_like_an_expiry, "X", {"max_attempts": {"shop": 3}}),
    (a_content_dies_before_its_attempts_are_used_up, "X", {"max_attempts": {"shop": 3}}),
    (dead_twice_by_one_delivery, "X", {}),
    (one_replay_is_delivered_twice, "D", {}),
    (a_replay_begins_with_its_third_attempt, "X", {}),
    (started_again_between_its_death_and_its_replay, "X", {}),
    (a_replay_is_lost, "L", {}),
    (a_high_one_is_ready_a_us_before_a_low_one_starts, "P", {}),
    (a_replay_of_high_priority_is_passed_over_in_its_buffer, "P", {}),
    (a_retry_loses_its_priority, "P", {}),
    (a_replay_loses_its_priority, "P", {}),
    (a_retry_loses_its_key, "K", {}),
    (two_of_a_key_overlap_by_a_us, "K", {}),
    (a_retry_of_a_key_starts_while_the_next_runs, "K", {}),
    (a_given_back_one_of_a_key_runs_beside_the_next, "K", {}),
    (a_key_s_first_is_started_by_the_next_owner_only, "K", {}),
    (two_change_their_offsets, "M", {}),
    (two_change_their_groups, "M", {}),
    (two_change_their_priorities, "P", {}),
    (the_very_last_of_a_queue_is_lost, "L", {}),
    (recalled_before_it_was_published_and_lost, "L", {}),
    (expired_before_it_was_published_and_lost, "L", {}),
    (published_after_a_loss_was_noticed_and_lost, "L", {}),
    (skipped_as_a_hole_to_its_last_offset, "L", {}),
    (a_content_is_recalled_and_delivered, "D", {}),
    (published_after_the_crash_it_misses_an_attempt, "X", {}),
    (over_before_the_crash_and_put_back_by_the_next, "D", {}),
)
