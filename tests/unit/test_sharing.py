"""Shares of a host's places, and who waits for them."""

from __future__ import annotations

import random

import pytest

from emq.quota.places import sharing
from emq.quota.places.sharing import Crowd, HoldingTimes


def test_the_longer_places_are_held_the_earlier_the_host_is_full() -> None:
    full_at = [sharing.ceiling(20_000, hold_s) for hold_s in (0.0, 0.05, 0.25, 1.0, 5.0, 60.0, float("inf"))]
    assert full_at == sorted(full_at, reverse=True)
    assert (full_at[0], full_at[-1]) == (20_000, 10_000)


@pytest.mark.parametrize("topics", [1, 2, 30, 300, 2_500, 20_000])
def test_however_many_topics_take_all_they_may_they_stay_below_their_ceiling(topics: int) -> None:
    held, used, full_at = [0] * topics, 0, 10_000
    for _ in range(3):
        for i in range(topics):
            taken = max(0, min(1_000, sharing.room(full_at, used, held[i])))
            held[i] += taken
            used += taken
    assert used <= full_at
    assert used >= full_at * 0.7 or topics < 30


@pytest.mark.parametrize("held", [0, 1, 3, 4, 17, 400])
def test_who_waits_is_told_when_there_is_room_and_not_before(held: int) -> None:
    at = sharing.used_at_most(1_000, held)
    assert sharing.room(1_000, at, held) >= 1
    assert sharing.room(1_000, at + 1, held) < 1


S = 1_000_000


def paced(n: int, at_s: int, took_s: float) -> HoldingTimes:
    pace = HoldingTimes()
    for _ in range(n):
        pace.began(int((at_s - took_s) * S))
        pace.ended(int((at_s - took_s) * S), at_s * S)
    return pace


def test_a_topic_that_settles_nothing_slows_down_and_one_that_is_idle_is_forgiven() -> None:
    assert HoldingTimes().hold_s(100 * S) == sharing.UNKNOWN_S
    pace = paced(20, 100, 0.05)
    pace.began(100 * S, 3)
    assert pace.hold_s(100 * S) < 0.1
    assert pace.hold_s(130 * S) == 30.0
    pace = paced(20, 130, 30.0)
    assert pace.hold_s(130 * S) > 25
    assert pace.hold_s(190 * S) == sharing.UNKNOWN_S


def test_a_topic_some_of_whose_messages_hang_is_known_by_their_age_and_one_outlier_is_forgiven() -> None:
    pace = paced(20, 100, 0.05)
    for at_s in range(100, 110):
        pace.began(at_s * S, 2)
        pace.ended(at_s * S, at_s * S + S // 20)
    assert pace.running == 10
    assert pace.hold_s(110 * S) > 5
    pace = paced(20, 100, 0.05)
    pace.began(100 * S, 2)
    pace.ended(100 * S, 160 * S - S // 10)
    for _ in range(40):
        pace.began(160 * S - S // 20)
        pace.ended(160 * S - S // 20, 160 * S)
    assert pace.running == 1
    assert pace.hold_s(160 * S) < 0.1


def test_a_crowd_gives_the_least_demanding_first_and_the_longest_waiting_on_demand() -> None:
    crowd: Crowd[str] = Crowd()
    crowd.wait("a", 10)
    crowd.wait("b", 30)
    crowd.wait("c", 20)
    crowd.wait("a", 5)  # what it was told before is better
    crowd.wait("c", 40)
    assert (len(crowd), crowd.wakes_at) == (3, 40)
    assert crowd.longest() == "a"
    assert crowd.first() == "c"
    assert crowd.wakes_at == 30
    assert crowd.first() == "b"
    assert (len(crowd), crowd.wakes_at) == (0, -1)


def test_a_crowd_that_is_looked_at_again_and_again_does_not_grow() -> None:
    crowd: Crowd[int] = Crowd()
    rng = random.Random(1)
    for i in range(100):
        crowd.wait(i, rng.randrange(1_000))
    for _ in range(10_000):
        crowd.wait(crowd.longest(), rng.randrange(1_000))
    assert len(crowd) == 100
    assert len(crowd._heap) < 300
    order = [crowd.wakes_at for _ in range(100) if crowd.first() >= 0]
    assert len(order) == 100


def test_a_lone_topic_leaves_a_fifth_of_the_places_free() -> None:
    """For those that come next: they would find none."""
    held = 0
    while sharing.room(1000, held, held) > 0:
        held += 1
    assert held == 1000 * sharing.ALPHA // (sharing.ALPHA + 1)


def test_unknown_topics_that_come_one_by_one_get_a_place_each_before_the_first_ones_get_many() -> None:
    """As where a busy host takes seconds to read the backlogs of all topics."""
    capacity, used = 1_000, 0
    shares, hung = sharing.Shares(capacity), [HoldingTimes() for _ in range(800)]
    held = dict.fromkeys(hung, 0)
    for i in range(len(hung)):
        now_us = i * S // 100
        for pace in hung[max(0, i - 200) : i + 1]:
            places = max(0, shares.room(pace, used, held[pace], now_us).places)
            if places and not pace.running:
                places = 1
            if places:
                pace.began(now_us, places)
            held[pace] += places
            used += places
    assert min(held.values()) == 1
    assert used <= 900
    assert shares.room(HoldingTimes(), used, 0, 8 * S).places == 1


@pytest.mark.parametrize("capacity", [1, 2, 3, 7, 50])
def test_unknown_topics_never_take_more_places_than_there_are(capacity: int) -> None:
    shares, used = sharing.Shares(capacity), 0
    paces = [HoldingTimes() for _ in range(capacity + 5)]
    held = dict.fromkeys(paces, 0)
    for now_us in range(0, 10 * S, S // 4):
        for pace in paces:
            if (places := shares.room(pace, used, held[pace], now_us).places) > 0:
                held[pace] += places
                used += places
                pace.began(now_us, places)
        assert 0 < used <= capacity
