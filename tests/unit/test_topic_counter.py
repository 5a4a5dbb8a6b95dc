"""The counter that all groups of a topic on one host draw from, by example."""

from __future__ import annotations

import math

import msgspec
import pytest

from emq.quota.topic_counter import GroupCounter, TopicCounter
from emq.topics.changing import created, divided
from emq.topics.model import Topic, TopicOptions, split
from emq.topics.shares import Division, allowance, of_groups
from emq.topics.tokens import pace

T = 1_700_000_000  # even


def topic(qps: float, group_qps: float = 50.0, **options: object) -> Topic:
    return split(Topic("t", qps, group_qps, options=TopicOptions(**options)))  # type: ignore[arg-type]


def changed(before: Topic, qps: float, now: float, draining: tuple[int, ...] | None = None) -> Topic:
    return divided(before, split(msgspec.structs.replace(before, qps=qps)), draining, now)


def joined(of: Topic, *indices: int, now: float = T) -> tuple[TopicCounter, list[GroupCounter]]:
    counter = TopicCounter(of)
    return counter, [counter.join(index, now) for index in indices]


def drawn(group: GroupCounter, now: float) -> int:
    """Return the starts that a group gets that asks again and again."""
    total = 0
    while granted := group.reserve(64, now):
        total += granted
    return total


def test_one_group_with_a_backlog_uses_all_that_the_topic_may_start_here() -> None:
    _, (first, *_) = joined(topic(120), 0, 1, 2)
    assert drawn(first, T + 1) == 120
    assert first.next_at(T + 1) == T + 2


def test_groups_that_wait_when_a_second_begins_get_even_parts_of_it() -> None:
    _, groups = joined(topic(120), 0, 1, 2)
    assert [group.reserve(64, T + 1) for group in groups] == [40, 40, 40]
    assert [group.reserve(64, T + 1) for group in groups] == [0, 0, 0]


def test_a_host_has_the_shares_of_its_groups_only() -> None:
    _, (first, third) = joined(topic(121), 0, 2)
    assert drawn(third, T + 1) + drawn(first, T + 1) == 41 + 40


@pytest.mark.parametrize("qps", [10.0, 10.5, 0.5])
def test_the_slots_of_two_hosts_start_together_what_the_topic_may(qps: float) -> None:
    slots = msgspec.structs.replace(topic(qps), active_groups=64, groups=64)
    _, some = joined(slots, *range(0, 64, 3))
    _, others = joined(slots, *(i for i in range(64) if i % 3))
    starts = [drawn(some[0], T + s) + drawn(others[-1], T + s) for s in range(1, 41)]
    assert sum(starts) == qps * 40
    assert max(starts) <= math.ceil(qps)


def test_a_group_that_comes_starts_nothing_in_that_second_and_its_share_counts_from_the_next_one_on() -> None:
    """Its former owner may have used its share of that second."""
    counter, (first,) = joined(topic(100), 0)
    assert first.reserve(30, T + 1) == 30
    second = counter.join(1, T + 1.5)
    assert second.reserve(64, T + 1.6) == 0
    assert second.available(T + 1.6) == 0
    assert second.next_at(T + 1.6) == T + 2
    assert drawn(first, T + 1.7) == 20
    assert drawn(second, T + 2) == 100


def test_a_group_that_came_in_a_second_before_anything_started_does_not_count_in_it() -> None:
    counter, (first,) = joined(topic(100), 0)
    counter.join(1, T + 1.5)
    assert drawn(first, T + 1.6) == 50


def test_the_share_of_a_group_that_goes_is_used_in_this_second_and_not_in_the_next() -> None:
    """Its next owner begins in the next second."""
    _, (first, second) = joined(topic(100), 0, 1)
    assert first.reserve(64, T + 1) == 50
    second.leave(T + 1.05)
    assert drawn(first, T + 1.1) == 50
    assert drawn(first, T + 2) == 50


def test_a_group_that_left_before_a_second_was_begun_does_not_count_in_it() -> None:
    _, (first, second) = joined(topic(100), 0, 1)
    second.leave(T + 0.9)
    assert drawn(first, T + 1.1) == 50


def test_what_is_given_back_can_be_reserved_by_another_group() -> None:
    _, (first, second) = joined(topic(100), 0, 1)
    assert drawn(first, T + 1) == 100
    first.release(30, T + 1)
    assert drawn(second, T + 1.2) == 30
    assert (first.reserved, first.rolled_back, second.reserved) == (100, 30, 30)


@pytest.mark.parametrize(("before", "after"), [(40, 80), (50, 60), (50, 51), (1, 1000), (120, 121)])
def test_a_raise_slows_nothing_down_while_the_hosts_learn_of_it(before: float, after: float) -> None:
    """The group with the backlog has a lower share of the new division, since more groups share."""
    counter, (first, *_) = joined(old := topic(before), *range(topic(before).groups))
    assert drawn(first, T + 1) == before
    new = changed(old, after, T + 1.2)
    counter.follow(new, T + 1.5)
    for index in range(old.groups, new.groups):
        counter.join(index, T + 1.6)
    assert [drawn(first, T + s) for s in (2, 3)] == [before, before]
    assert [drawn(first, T + s) for s in (4, 5)] == [after, after]


def test_a_share_to_come_counts_only_once_it_has_begun_unless_the_qps_falls() -> None:
    known = (Division(0, 50.0, 50.0, 1), Division(T + 3, 60.0, 50.0, 2), Division(T + 4, 20.0, 50.0, 1))
    course = of_groups(known[:2], [0])
    assert [allowance(course, T + s) for s in (1, 2, 3)] == [50, 50, 30]
    assert allowance(of_groups(known, [0]), T + 1) == 20


def test_a_lower_qps_counts_at_once() -> None:
    counter, (first, _) = joined(old := topic(100), 0, 1)
    assert first.reserve(64, T + 1) == 50
    counter.follow(changed(old, 70, T + 1.1), T + 1.2)
    assert drawn(first, T + 1.3) == 20
    assert drawn(first, T + 2) == 70


def test_a_shrunk_topic_uses_its_qps_wherever_its_backlog_is() -> None:
    counter, groups = joined(old := topic(200), *range(4))
    counter.follow(changed(old, 50, T + 1), T + 1)
    for group in (groups[0], groups[3]):  # one that stays, and a retired one
        assert drawn(group, T + 2 + group.index) == 50
    empty = changed(old, 50, T + 1, draining=())
    counter.follow(empty, T + 7)
    assert drawn(groups[3], T + 8) == 50  # a late message of a group that has no share


def test_another_pacing_starts_nothing_in_that_second() -> None:
    counter, (first, _) = joined(old := topic(100), 0, 1)
    smooth = msgspec.structs.replace(old, options=TopicOptions(pacing="smooth"))
    assert drawn(first, T + 5) == 100
    counter.follow(smooth, T + 5.1)
    assert drawn(first, T + 5.9) == 0
    assert drawn(first, T + 6.1) == 10
    counter.follow(old, T + 6.2)
    assert drawn(first, T + 6.9) == 0
    assert drawn(first, T + 7) == 100


def test_another_pacing_starts_nothing_in_that_second_though_groups_come_and_settings_change() -> None:
    counter, (first, _) = joined(topic(100), 0, 1)
    assert drawn(first, T + 5) == 100
    counter.follow(topic(100, pacing="smooth"), T + 5.1)
    counter.join(2, T + 5.2)
    counter.follow(topic(100, pacing="smooth", burst=50), T + 5.3)
    assert [drawn(first, T + 5 + tenth / 10) for tenth in range(4, 11)] == [0] * 7
    assert drawn(first, T + 6.1) == 10


def test_the_groups_of_a_smooth_topic_share_one_bucket() -> None:
    _, (first, second) = joined(topic(100, pacing="smooth"), 0, 1)
    assert drawn(first, T) == 0
    assert drawn(first, T + 0.1) == 10
    assert drawn(second, T + 5) == 11
    assert drawn(first, T + 5) == 0


def test_a_smooth_group_that_goes_takes_its_part_of_the_bucket_and_of_the_rate() -> None:
    _, (first, second) = joined(topic(100, pacing="smooth"), 0, 1)
    assert first.reserve(1, T + 5) == 1  # ten tokens are left
    second.leave(T + 5)
    assert first.available(T + 5) == 5  # as many as the half of the bucket holds
    assert drawn(first, T + 5) == 5
    assert drawn(first, T + 5.05) == 3


def test_the_turns_of_several_smooth_groups_are_used_by_one() -> None:
    _, (first, _) = joined(topic(100, group_qps=25, pacing="smooth", burst=1), 0, 2)
    assert sum(drawn(first, T + 1 + ms / 1000) for ms in range(1_000)) in (49, 50)
    drawn(first, T + 2)
    at = first.next_at(T + 2)
    assert first.available(at - 1e-3) == 0
    assert first.available(at + 2e-6) == 1


def test_a_second_of_a_window_begins_a_few_milliseconds_late() -> None:
    """An endpoint whose clock differs by less would else count the starts of two seconds in one."""
    counter = TopicCounter(topic(10), begins_s=0.005)
    group = counter.join(0, T + 0.5)
    assert group.next_at(T + 0.5) == T + 1.005
    assert group.reserve(5, T + 1.004) == 0
    assert group.available(T + 1.004) == 0
    assert group.next_at(T + 1.004) == T + 1.005
    assert group.reserve(50, T + 1.0051) == 10
    assert group.next_at(T + 1.2) == T + 2.005


def test_the_first_milliseconds_of_a_second_without_a_start_name_the_next_second_with_one() -> None:
    counter = TopicCounter(topic(0.25), begins_s=0.005)
    group = counter.join(0, T - 10)
    at = next(s for s in range(T + 1, T + 9) if allowance(of_groups(topic(0.25).timeline, [0]), s))
    assert group.next_at(at - 3 + 0.001) == at + 0.005


def test_smooth_pacing_knows_no_seconds() -> None:
    counter = TopicCounter(topic(100, pacing="smooth"), begins_s=0.005)
    group = counter.join(0, T)
    assert group.reserve(3, T + 1.001) == 3


def test_a_change_of_a_small_quota_makes_no_start_due() -> None:
    at, of = T + 3, created(topic(0.01), T)
    assert of.division.total.next_second(T) == at
    for i in range(5):
        of = changed(of, 0.01 + i / 1e4, T + 4 + 5 * i)
        assert of.division.origin_s == at
    assert changed(topic(100), 0.01, T).division.total.next_second(T) == at
    assert changed(of, 100, T + 60).division.origin_s == 0


def test_a_host_with_all_groups_of_a_smooth_topic_gets_their_tokens_in_the_way_of_a_host_with_one() -> None:
    """A bucket may be emptied just before a group moves, and the next owner's first minted token come just after."""
    for division in (Division(0, 12.0, 6.0, 2), Division(0, 100.0, 50.0, 2)):
        assert bool(pace(division, [0, 1], None).lifetime_s) == bool(pace(division, [0], None).lifetime_s)
