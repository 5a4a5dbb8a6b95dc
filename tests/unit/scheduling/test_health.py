"""Health: a resource that fails, slows down or asks for less gets less soon, and comes back by a probe."""

import random

import pytest

from emq.quota.breaker import CLOSED_S, JITTER, MOST_CLOSED_S
from emq_scheduling.choice.health import IN_A_ROW, MOST_CLOSED_FAILED_S, Health
from emq_scheduling.limits.accounts import PROBE_FACTOR

NOW = 1_000_000.0


@pytest.fixture
def health() -> Health:
    return Health(random.Random(1))


def work(health: Health, seconds: int, at: float = NOW, took_s: float = 0.1, per_s: int = 10) -> float:
    """Let tasks succeed for some seconds; return the time after them."""
    for number in range(seconds * per_s):
        now = at + number / per_s
        health.succeeded(now - took_s, now)
    return at + seconds


def test_a_resource_in_order_gets_its_limits(health: Health) -> None:
    now = work(health, 10)
    assert (health.factor(now), health.reason, health.closed_until) == (1.0, "", 0.0)


def test_asking_for_less_halves_once_for_tasks_that_ran_together(health: Health) -> None:
    for _ in range(20):
        health.too_much(NOW - 0.5, NOW, "429")
    assert (health.factor(NOW), health.reason) == (0.5, "429")
    health.too_much(NOW - 0.1, NOW + 1.5, "429")
    assert health.factor(NOW + 1.5) == 0.5, "it began before the last change"
    health.too_much(NOW + 0.1, NOW + 1.5, "429")
    assert health.factor(NOW + 1.5) == 0.25


def test_the_factor_rises_by_a_twentieth_a_second_until_all_is_back(health: Health) -> None:
    health.too_much(NOW, NOW, "429")
    now = work(health, 2, NOW + 1.5)
    assert health.factor(now) == pytest.approx(0.6)
    work(health, 8, now)
    assert (health.factor(now), health.reason) == (1.0, "")


def test_the_factor_never_reaches_zero(health: Health) -> None:
    for second in range(60):
        health.too_much(NOW + second, NOW + second, "429")
    assert health.factor(NOW) == 0.01


def test_retry_after_is_a_pause(health: Health) -> None:
    health.too_much(NOW, NOW, "429", 30.0)
    health.too_much(NOW, NOW + 0.5, "429", 10.0)
    assert health.closed_until == NOW + 30
    assert "pause of 30 s" in health.reason
    assert health.factor(NOW + 31) == 0.5, "it is not probed"
    health.too_much(NOW, NOW + 0.5, "429", 1e12)
    assert health.closed_until == NOW + 0.5 + 86_400


def test_five_failures_close_a_resource_of_which_nothing_good_is_known(health: Health) -> None:
    for number in range(5):
        assert health.closed_until == 0.0
        health.failed(NOW + number / 10 - 0.05, NOW + number / 10, "timed out")
    assert CLOSED_S <= health.closed_until - (NOW + 0.4) <= CLOSED_S * (1 + JITTER)
    assert health.factor(NOW + 1) == PROBE_FACTOR
    assert health.reason == "out of order: timed out"


def test_ten_failures_in_a_row_close_a_resource_however_good_it_was(health: Health) -> None:
    now = work(health, 100)
    for number in range(IN_A_ROW):
        assert health.closed_until == 0.0
        health.failed(now + number / 10 - 0.05, now + number / 10, "timed out")
    assert health.closed_until > now


def test_a_slow_resource_is_noticed_after_as_few_failures(health: Health) -> None:
    now = work(health, 3_600, per_s=1)
    for number in range(IN_A_ROW):
        health.failed(now + 60 * number - 5, now + 60 * number, "timed out")
    assert health.closed_until > now


def test_some_failures_between_successes_close_nothing(health: Health) -> None:
    for number in range(1_000):
        now = NOW + number / 10
        if number % 3:
            health.failed(now - 0.05, now, "poison")
        else:
            health.succeeded(now - 0.05, now)
    assert health.factor(NOW) == 1.0


def test_one_broken_task_closes_at_once_and_those_that_ran_with_it_change_nothing(health: Health) -> None:
    now = work(health, 10)
    health.broken(now - 0.2, now, "no route")
    until = health.closed_until
    assert until > now
    for _ in range(50):
        health.broken(now - 0.1, now + 0.1, "no route")
        health.failed(now - 0.1, now + 0.1, "no route")
    health.succeeded(now - 0.1, now + 0.1)
    assert health.closed_until == until
    assert health.factor(now + 0.1) == PROBE_FACTOR


def test_a_probe_that_fails_doubles_the_pause_up_to_the_most(health: Health) -> None:
    health.broken(NOW, NOW, "no route")
    pauses = []
    for _ in range(10):
        began = health.closed_until
        health.broken(began + 0.1, began + 0.2, "no route")
        pauses.append(health.closed_until - began - 0.2)
    assert [pause >= 5 * 2**n for n, pause in enumerate(pauses[:6], 1)] == [True] * 6
    assert MOST_CLOSED_S <= pauses[-1] <= MOST_CLOSED_S * (1 + JITTER)


def test_failures_of_tasks_alone_close_for_a_minute_at_most(health: Health) -> None:
    for _ in range(30):
        began = max(NOW, health.closed_until)
        health.failed(began, began + 0.1, "bug")
    assert health.closed_until - began <= MOST_CLOSED_FAILED_S * (1 + JITTER) + 0.1


def test_a_probe_that_succeeds_begins_at_a_tenth(health: Health) -> None:
    health.broken(NOW, NOW, "no route")
    began = health.closed_until
    assert health.factor(began) == PROBE_FACTOR
    health.succeeded(began + 0.1, began + 0.2)
    assert health.factor(began + 0.2) == pytest.approx(0.1)
    assert health.reason == "it answers again; before: out of order: no route"
    now = work(health, 20, began + 1.5)
    assert (health.factor(now), health.reason) == (1.0, "")


def test_a_probe_that_is_told_too_much_shows_that_the_resource_is_in_order(health: Health) -> None:
    health.broken(NOW, NOW, "no route")
    began = health.closed_until
    health.too_much(began, began + 0.1, "429", 3.0)
    assert health.factor(began + 1) == pytest.approx(0.1)
    assert health.closed_until == began + 0.1 + 3


def test_tasks_that_ended_late_do_not_close_a_resource_that_answers_again(health: Health) -> None:
    health.broken(NOW, NOW, "no route")
    began = health.closed_until
    health.succeeded(began, began + 0.1)
    health.broken(NOW - 1, began + 0.2, "timed out")
    assert health.factor(began + 0.2) == pytest.approx(0.1)


def test_a_resource_that_slows_down_is_halved_after_a_few_tasks(health: Health) -> None:
    now = work(health, 10, took_s=0.5)
    for number in range(6):
        health.succeeded(now + number - 5, now + number)
    assert health.factor(now) == 0.5
    assert health.reason == "tasks take 2.4 s, usually 0.6 s"


def test_slow_tasks_leave_a_tenth_and_become_usual(health: Health) -> None:
    now = work(health, 10, took_s=0.5)
    lowest = 1.0
    for number in range(1_000):
        health.succeeded(now + number - 5, now + number)
        lowest = min(lowest, health.factor(now))
    assert lowest == 0.1
    assert health.factor(now) == 1.0


def test_types_that_take_long_are_not_slow_beside_short_ones(health: Health) -> None:
    for number in range(1_000):
        now = NOW + number / 10
        health.succeeded(now - 0.1, now, "sms")
        health.succeeded(now - 60, now, "voice")
    assert health.factor(NOW) == 1.0


def test_tasks_of_very_different_length_are_not_slow(health: Health) -> None:
    random_ = random.Random(3)
    for number in range(5_000):
        now = NOW + number / 10
        health.succeeded(now - random_.uniform(0.2, 8.0), now, "completion")
        assert health.factor(now) == 1.0


def test_a_clock_that_goes_back_changes_nothing(health: Health) -> None:
    now = work(health, 10)
    health.succeeded(now + 5, now)
    health.failed(now, now - 2, "timed out")
    health.too_much(now - 5, now - 3, "429")
    assert health.factor(now) == 0.5
