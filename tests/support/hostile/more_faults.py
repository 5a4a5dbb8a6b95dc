"""More faults that a hostile reader plants in a trail: what began before it, came after a loss, or does not add up."""

from __future__ import annotations

from typing import Any

from emq.trail import events
from support.hostile.faults import VOID, Planter
from support.hostile.told import CONTENT, Told, at

REJECTED = f"{events.REJECTED}no"


# ----------------------------------------------------------------------------------- what began before the trail began


def replayed_from_before_the_trail_and_lost(t: Told) -> None:
    t.own()
    t.add(events.REPLAYED, 100, "cli", priority=0, id="old")


def put_back_from_before_the_trail_and_lost(t: Told) -> None:
    t.own()
    t.end(t.start("old", 10), 20, events.RETRIED, due_ms=at(30) // 1000)


def started_from_before_the_trail_and_never_ended(t: Told) -> None:
    t.own()
    t.start("old", 10)
    t.release(500)


def recalled_published_again_and_lost(t: Told) -> None:
    t.own()
    t.publish(CONTENT, offset=None, due_ms=at(5000) // 1000)
    t.add(events.RECALLED, 100, "cli", priority=0, id=CONTENT)
    t.publish(CONTENT, 1000, offset=None)


def a_content_that_moved_to_its_lane_is_lost(t: Told) -> None:
    t.own()
    t.publish(CONTENT, offset=None)
    start = t.start(CONTENT, 10, -1, published_us=None)
    t.end(start, 20, events.RETRIED, id=f"{CONTENT}~5", due_ms=at(30) // 1000)


# ------------------------------------------------------------------------------------------- what came after a loss


def after_a_loss_an_attempt_is_missing(t: Told) -> None:
    t.own()
    t.add(events.LOST, 100, priority=0, offset=0, until=1)
    t.publish("a", 5000, offset=7)
    t.deliver("a", 5010, -1, attempt=3, published_us=at(5000))


def after_a_loss_an_owner_reads_an_offset_again(t: Told) -> None:
    t.own()
    t.add(events.LOST, 100, priority=0, offset=0, until=1)
    t.publish("a", 5000, offset=7)
    t.start("a", 5010, 7, published_us=at(5000))
    t.deliver("a", 6000, 7, published_us=at(5000))


def after_a_loss_two_get_one_offset(t: Told) -> None:
    t.own()
    t.add(events.LOST, 100, priority=0, offset=0, until=1)
    for i, name in enumerate("ab"):
        t.publish(name, 5000 + i, offset=7)
        t.deliver(name, 5100 + 100 * i, 7, published_us=at(5000 + i))


def after_a_loss_one_is_settled_twice(t: Told) -> None:
    t.own()
    t.add(events.LOST, 100, priority=0, offset=0, until=5)
    t.publish("a", 2000, offset=3)
    t.deliver("a", 2010, 3, published_us=at(2000))
    t.release(3000)
    t.own(4000, "next", 2)
    t.deliver("a", 5000, 3, source="next", epoch=2, published_us=at(2000))


# ----------------------------------------------------------------------------------------- what does not fit together


def ended_in_another_group(t: Told) -> None:
    t.own()
    t.publish("a")
    t.end(t.start("a", 10), 20, group=1)


def ended_with_another_priority(t: Told) -> None:
    t.own()
    t.publish("a")
    t.end(t.start("a", 10), 20, priority=2)


def ended_at_another_offset(t: Told) -> None:
    t.own()
    t.publish("a")
    t.end(t.start("a", 10), 20, offset=5)


def first_delivered_from_a_lane_that_it_never_reached(t: Told) -> None:
    t.own()
    t.publish("a")
    t.deliver("a", 10, -1)


def delayed_and_delivered_from_a_queue(t: Told) -> None:
    t.own()
    t.publish("a", offset=None, due_ms=at(5) // 1000)
    t.deliver("a", 10, 5)


def delivered_before_it_was_published(t: Told) -> None:
    t.own()
    t.publish("a", 5000)
    t.deliver("a", 10, published_us=None)


def a_content_settled_by_another_host(t: Told) -> None:
    t.own()
    t.publish(CONTENT, offset=None)
    t.end(t.start(CONTENT, 10, -1, published_us=None), 20, source="other")


def a_content_settled_without_a_start(t: Told) -> None:
    t.own()
    t.publish(CONTENT, offset=None)
    start = t.start(CONTENT, 10, -1, published_us=None)
    t.end(start, 20)
    t.rows.remove(start)


# -------------------------------------------------------------------------------------- owners, keys and several groups


def an_epoch_that_goes_back(t: Told) -> None:
    t.own(epoch=2)
    t.message("a", 10, epoch=2)
    t.release(500, epoch=2)
    t.own(1000, "next", 1)
    t.message("b", 2000, 1, source="next", epoch=1)


def a_host_goes_on_under_its_former_epoch(t: Told) -> None:
    t.own()
    t.own(500, epoch=2)
    t.message("a", 2000)


def a_key_s_next_overtakes_it_in_another_group(t: Told) -> None:
    """The number of groups has grown in between. Both are published by one producer, one after the other."""
    t.own()
    t.own(group=3)
    t.publish("first", 0, offset=4, key="k")
    t.publish("second", 1000, offset=0, key="k", group=3)
    t.deliver("second", 1010, 0, key="k", group=3, published_us=at(1000))
    t.deliver("first", 2000, 4, key="k", published_us=at(0))


def two_of_a_key_run_in_two_groups(t: Told) -> None:
    t.own()
    t.own(group=3)
    t.message("first", 10, 4, took=1000, key="k")
    t.message("second", 500, 0, key="k", group=3)


def groups_that_no_catalog_has_exceed_the_cap_of_their_topic(t: Told) -> None:
    for group in (0, 7):
        t.own(group=group)
        for i in range(8):
            t.message(f"m{group}-{i}", 10 + i, i, group=group)


def a_retry_of_high_priority_is_passed_over_in_its_buffer(t: Told) -> None:
    t.own()
    t.publish("high")
    t.end(t.start("high", 10), 20, events.RETRIED, due_ms=at(1000) // 1000)
    for i in range(8):
        t.message(f"low{i}", 2000 + i, i, priority=1)
    t.deliver("high", 3000, -1, attempt=2, ready_us=at(1500))


def a_replayed_content_dies_three_times(t: Told) -> None:
    t.own()
    for ms in (0, 1000):
        t.publish(CONTENT, ms, offset=None)
    for i in range(4):
        start = t.start(CONTENT, 100 + 1000 * i, -1, published_us=None)
        t.end(start, 110 + 1000 * i, events.DEAD, reason=REJECTED)
    t.add(events.REPLAYED, 1500, "cli", priority=0, id=CONTENT)


MORE_FAULTS: tuple[tuple[Planter, str, dict[str, Any]], ...] = (
    (replayed_from_before_the_trail_and_lost, "L", {}),
    (put_back_from_before_the_trail_and_lost, "L", {}),
    (started_from_before_the_trail_and_never_ended, "L", {}),
    (recalled_published_again_and_lost, "L", {}),
    (a_content_that_moved_to_its_lane_is_lost, "L", {}),
    (after_a_loss_an_attempt_is_missing, "X", {}),
    (after_a_loss_an_owner_reads_an_offset_again, "M", {}),
    (after_a_loss_two_get_one_offset, "M", {}),
    (after_a_loss_one_is_settled_twice, "D", {}),
    (ended_in_another_group, VOID, {}),
    (ended_with_another_priority, VOID, {}),
    (ended_at_another_offset, VOID, {}),
    (first_delivered_from_a_lane_that_it_never_reached, "M", {}),
    (delayed_and_delivered_from_a_queue, "M", {}),
    (delivered_before_it_was_published, VOID, {}),
    (a_content_settled_by_another_host, VOID, {}),
    (a_content_settled_without_a_start, VOID, {}),
    (an_epoch_that_goes_back, "O", {}),
    (a_host_goes_on_under_its_former_epoch, "O", {}),
    (a_key_s_next_overtakes_it_in_another_group, "K", {}),
    (two_of_a_key_run_in_two_groups, "K", {}),
    (groups_that_no_catalog_has_exceed_the_cap_of_their_topic, "Q", {"quotas": {"shop": 10, "shop/0": 10}}),
    (a_retry_of_high_priority_is_passed_over_in_its_buffer, "P", {}),
    (a_replayed_content_dies_three_times, "X", {}),
)
