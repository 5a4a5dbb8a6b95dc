"""More oddities in a trail that break no promise: the lawful neighbours of `support.hostile.more_faults`."""

from __future__ import annotations

from typing import Any

from emq.trail import events
from support.hostile.faults import Planter
from support.hostile.told import CONTENT, Told, at

REJECTED = f"{events.REJECTED}no"


def replayed_from_before_the_trail_and_delivered(t: Told) -> None:
    t.own()
    t.add(events.REPLAYED, 100, "cli", priority=0, id="old")
    t.deliver("old", 200, -1)


def replayed_from_before_the_trail_and_recalled(t: Told) -> None:
    t.own()
    t.add(events.REPLAYED, 100, "cli", priority=0, id="old")
    t.add(events.RECALLED, 200, "cli", priority=0, id="old")


def put_back_from_before_the_trail_and_waiting(t: Told) -> None:
    t.own()
    t.end(t.start("old", 10), 20, events.RETRIED, due_ms=at(60_000) // 1000)


def started_from_before_the_trail_and_ended_by_the_next_owner(t: Told) -> None:
    """The first owner did not wait any longer for its handler."""
    t.own()
    t.start("old", 10)
    t.release(500)
    t.own(1000, "next", 2)
    t.deliver("old", 1500, source="next", epoch=2)


def a_lost_offset_is_given_out_again(t: Told) -> None:
    t.own()
    t.publish("gone", 0, offset=3)
    t.add(events.LOST, 100, priority=0, offset=3, until=4)
    t.publish("next", 2000, offset=3)
    t.deliver("next", 2010, 3, published_us=at(2000))


def a_lost_message_had_been_delivered_and_is_read_again(t: Told) -> None:
    """The store came back without it, and got it again from a replica; the owner goes back under its epoch."""
    t.own()
    t.publish("a", 0, offset=3)
    t.deliver("a", 10, 3)
    t.add(events.LOST, 100, priority=0, offset=2, until=4)
    t.deliver("a", 500, 3)


def a_host_takes_its_group_again_under_a_new_epoch(t: Told) -> None:
    t.own()
    t.message("a", 10)
    t.release(100)
    t.own(500, epoch=2)
    t.message("b", 2000, 1, epoch=2)


def a_key_goes_on_in_another_group(t: Told) -> None:
    """The number of groups has grown in between."""
    t.own()
    t.own(group=3)
    t.publish("first", 0, offset=4, key="k")
    t.publish("second", 1000, offset=0, key="k", group=3)
    t.deliver("first", 1500, 4, took=300, key="k", published_us=at(0))
    t.deliver("second", 1810, 0, key="k", group=3, published_us=at(1000))


def a_key_is_published_by_two_at_a_time(t: Told) -> None:
    """Neither publish was done when the other one began."""
    t.own()
    t.own(group=3)
    t.publish("first", 1200, offset=4, key="k", published_us=at(0))
    t.publish("second", 1100, offset=0, key="k", group=3, published_us=at(1000), source="another")
    t.deliver("second", 1300, 0, key="k", group=3, published_us=at(1000))
    t.deliver("first", 2000, 4, key="k", published_us=at(0))


def a_retry_of_a_key_comes_after_its_next_in_another_group(t: Told) -> None:
    t.own()
    t.own(group=3)
    t.publish("first", 0, offset=4, key="k")
    t.publish("second", 1000, offset=0, key="k", group=3)
    t.end(t.start("first", 1010, 4, key="k", published_us=at(0)), 1020, events.RETRIED, due_ms=at(1500) // 1000)
    t.deliver("second", 1030, 0, key="k", group=3, published_us=at(1000))
    t.deliver("first", 2000, -1, attempt=2, key="k", group=3, published_us=at(0))


def published_by_a_clock_that_is_a_little_ahead(t: Told) -> None:
    t.own()
    t.publish("a", 200)
    t.deliver("a", 60, published_us=at(200))


def a_content_expires_without_a_start(t: Told) -> None:
    t.own()
    t.publish(CONTENT, offset=None)
    t.add(events.DEAD, 1000, id=CONTENT, offset=-1, priority=0, attempt=1, reason=events.EXPIRED, until=at(900))


def a_content_fails_moves_to_its_lane_and_comes_back(t: Told) -> None:
    t.own()
    t.publish(CONTENT, offset=None)
    start = t.start(CONTENT, 10, -1, published_us=None)
    t.end(start, 20, events.RETRIED, id=f"{CONTENT}~5", due_ms=at(30) // 1000)
    t.deliver(f"{CONTENT}~5", 40, -1, attempt=2, published_us=None)
    t.publish(CONTENT, 1000, offset=None)
    t.deliver(CONTENT, 1010, -1, published_us=None)


def dead_from_its_queue_and_first_tried_again_from_its_lane(t: Told) -> None:
    t.own()
    t.publish("a")
    t.end(t.start("a", 10), 20, events.DEAD, reason=REJECTED)
    t.add(events.REPLAYED, 400, "cli", priority=0, id="a")
    t.deliver("a", 800, -1)


MORE_LAWFUL: tuple[tuple[Planter, dict[str, Any]], ...] = (
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
