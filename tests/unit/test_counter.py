"""Counters by example."""

from __future__ import annotations

import math

import pytest

from emq.quota.counter import WindowCounter
from emq.quota.smooth import Pace, SmoothCounter, Stock
from emq.topics.shares import MICRO, Division, share_of
from emq.topics.tokens import TokenSource, pace

T = 1_700_000_000  # even


@pytest.mark.parametrize(
    ("quota", "seconds"), [(50.0, [50] * 6), (2.5, [2, 3] * 3), (0.5, [0, 1] * 3), (0.25, [0, 0, 0, 1, 0, 0])]
)
def test_a_quota_is_dealt_out_second_by_second(quota: float, seconds: list[int]) -> None:
    counter = WindowCounter(quota, T - 1)
    assert [counter.reserve(1_000, T + i) for i in range(6)] == seconds


def test_a_new_counter_grants_nothing_in_the_second_it_is_made_in() -> None:
    counter = WindowCounter(50, T + 0.1)
    assert counter.reserve(10, T + 0.9) == 0
    assert counter.next_at(T + 0.9) == T + 1
    assert counter.reserve(10, T + 1) == 10


def test_what_is_released_can_be_reserved_again_in_its_second_only() -> None:
    counter = WindowCounter(5, T)
    assert counter.reserve(5, T + 1) == 5
    counter.release(2, T + 1)
    assert counter.reserve(5, T + 1.6) == 2
    assert counter.reserve(3, T + 2.1) == 3
    counter.release(2, T + 1.6)  # another group has begun the next second
    assert counter.reserve(9, T + 2.2) == 2
    assert (counter.reserved, counter.rolled_back) == (12, 4)


def test_a_lower_quota_counts_at_once_also_for_what_is_reserved_and_given_back() -> None:
    counter = WindowCounter(50, T)
    assert counter.reserve(50, T + 1) == 50
    counter.set_quota(10, T + 1.1)
    counter.release(50, T + 1)
    assert counter.reserve(50, T + 1.3) == 10
    assert counter.reserve(50, T + 2) == 10


def test_a_quota_of_nothing_is_never_due() -> None:
    assert WindowCounter(0, T).next_at(T) == math.inf
    assert SmoothCounter(0, T).next_at(T) == math.inf
    assert WindowCounter(0, T).reserve(1, T + 100) == 0


def test_a_smooth_counter_starts_empty_and_fills_to_its_burst_only() -> None:
    counter = SmoothCounter(10, T, burst=3)
    assert counter.reserve(5, T) == 0
    assert counter.reserve(5, T + 0.1) == 1
    assert counter.reserve(50, T + 100) == 3
    assert SmoothCounter(50, T).reserve(100, T + 100) == 6, "the default burst is one and a tenth of a second"


def test_a_smooth_counter_that_begins_later_has_no_token_due_before() -> None:
    counter = SmoothCounter(1000, T + 1)
    assert counter.reserve(1, T + 0.5) == 0
    assert counter.next_at(T + 0.5) == T + 1.001, "else its groups would look a thousand times in vain"


def test_a_change_of_a_smooth_quota_begins_empty_and_a_lower_one_counts_at_once() -> None:
    before, after = Division(0, 100, 100, 1), Division(T + 10, 20, 100, 1)
    counter = SmoothCounter(paces(before), T)
    assert counter.reserve(100, T + 5) == 11
    counter.set_paces(paces(before, after), T + 5)
    assert counter.reserve(100, T + 6) == 3
    assert counter.reserve(100, T + 10) == 0
    assert counter.reserve(100, T + 10.1) == 2


def test_a_change_that_lowers_the_share_of_a_group_and_not_the_topics_qps_counts_once_it_begins() -> None:
    before = Division(0, 60, 50, 2, uneven=(50 * MICRO, 10 * MICRO))
    counter = SmoothCounter(paces(before), T)
    counter.set_paces(paces(before, Division(T + 10, 60, 50, 2)), T + 1)
    assert sum(counter.reserve(100, T + 5 + tick / 50) for tick in range(1, 201)) == pytest.approx(
        205, abs=1
    )  # with the burst
    assert sum(counter.reserve(100, T + 10 + tick / 50) for tick in range(1, 201)) == pytest.approx(120, abs=1)


def paces(*divisions: Division) -> list[Pace]:
    """Return the paces of the first group."""
    return [Pace(d.since_s, pace(d, [0], None), d.qps) for d in divisions]


def test_what_is_given_back_to_a_smooth_counter_can_be_reserved_again() -> None:
    counter = SmoothCounter(10, T, burst=5)
    assert counter.reserve(5, T + 1) == 5
    counter.release(3, T + 1)
    assert counter.reserve(5, T + 1) == 3


def test_what_was_taken_before_a_change_of_a_smooth_quota_is_not_given_back_to_the_new_one() -> None:
    """The new pace begins empty: what came before it is bounded by the old one."""
    before, after = Division(0, 100, 100, 1), Division(T + 10, 20, 100, 1)
    counter = SmoothCounter(paces(before), T)
    counter.set_paces(paces(before, after), T + 5)
    assert counter.reserve(100, T + 9.9) == 3
    assert counter.available(T + 10) == 0
    counter.release(3, T + 9.9)
    assert counter.available(T + 10) == 0
    assert counter.rolled_back == 3


@pytest.mark.parametrize("qps", [0.3, 3.0, 6.4, 7.0, 150.0])
def test_the_time_that_a_bucket_names_is_a_whole_microsecond_at_which_it_has_a_token(qps: float) -> None:
    stock = Stock(TokenSource(share_of(qps), 1.0), 1_795_364_850_707_031)
    now_us = 1_795_364_850_707_031
    for _ in range(200):
        next_us = stock.next_us(now_us)
        assert next_us == int(next_us)
        now_us = int(next_us)
        assert stock.whole(now_us - 1) == 0
        assert stock.whole(now_us) == 1
        stock.take(1)
