"""Schedules: ActiveMQ's rules of delay, period, repeat and cron; clocks that change; what is refused."""

from __future__ import annotations

import datetime
import zoneinfo
from typing import Any

import pytest

from emq.runtime import errors
from emq.timetable import occurrences as course
from emq.timetable import schedule as spec
from emq.timetable.occurrences import MISSED_AFTER_MS, STEPS
from emq.timetable.schedule import Schedule

START = 1_800_000_000_000
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")


def at(*fields: int, fold: int = 0) -> int:
    return int(datetime.datetime(*fields, tzinfo=BERLIN, fold=fold).timestamp() * 1000)  # type: ignore[misc, arg-type]


def dues(schedule: Schedule, count: int = 10, since: int = START) -> list[float]:
    """Due times of the next occurrences, in seconds since a time."""
    return [(due_ms - since) / 1000 for _, due_ms in course.upcoming(schedule, count)]


def local(schedule: Schedule, count: int) -> list[str]:
    times = [datetime.datetime.fromtimestamp(due / 1000, BERLIN) for _, due in course.upcoming(schedule, count)]
    return [f"{time:%d %H:%M %z}" for time in times]


# --------------------------------------------------------------------------------------------------- what comes when


def test_delay_is_before_the_first_period_between_repeats_and_repeat_counts_those_after_the_first() -> None:
    assert dues(spec.create(start_ms=START, every_s=10, repeat=3, delay_s=60)) == [60, 70, 80, 90]
    assert dues(spec.create(start_ms=START, every_s=10, repeat=0)) == [0]
    assert dues(spec.create(start_ms=START, every_s=0.25), 4) == [0, 0.25, 0.5, 0.75]


def test_each_firing_of_cron_begins_a_run_of_delay_and_repeats() -> None:
    hourly = spec.create(start_ms=START, cron="0 * * * *", delay_s=1, every_s=1, repeat=3)
    assert START % 3_600_000 == 0
    assert dues(hourly, 9) == [3601, 3602, 3603, 3604, 7201, 7202, 7203, 7204, 10801]
    assert dues(spec.create(start_ms=START, cron="0 * * * *"), 2) == [3600, 7200]


def test_runs_of_cron_may_overlap_and_their_occurrences_come_in_order() -> None:
    found = spec.create(start_ms=START, cron="* * * * *", every_s=50, repeat=2)
    assert dues(found, 9) == sorted(60 * run + 50 * i for run in range(1, 9) for i in range(3))[:9]
    delayed = spec.create(start_ms=START, cron="* * * * *", delay_s=300)
    assert dues(delayed, 3) == [360, 420, 480]


def test_cron_may_have_seconds_and_names() -> None:
    assert dues(spec.create(start_ms=START, cron="*/20 * * * * *"), 3) == [20, 40, 60]
    fridays = spec.create(start_ms=START, cron=" 0  9 * jan FRI ")
    assert fridays.cron == "0 9 * jan FRI"
    assert [
        datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC).weekday() for _, ms in course.upcoming(fridays, 3)
    ] == [4] * 3


def test_a_schedule_starts_after_its_start_and_not_at_it() -> None:
    assert dues(spec.create(start_ms=START, cron="0 * * * *"), 1) == [3600]
    assert dues(spec.create(start_ms=START - 1, cron="0 * * * *"), 1) == [0]


# ------------------------------------------------------------------------------------------------- clocks that change


def test_a_fixed_time_in_a_skipped_hour_comes_at_its_end() -> None:
    found = spec.create(start_ms=at(2026, 3, 28, 12), cron="30 2 * * *", tz="Europe/Berlin")
    assert local(found, 2) == ["29 03:00 +0200", "30 02:30 +0200"]
    both = spec.create(start_ms=at(2026, 3, 28, 12), cron="0,30 2 * * *", tz="Europe/Berlin")
    assert local(both, 2) == ["29 03:00 +0200", "30 02:00 +0200"]


def test_a_fixed_time_in_an_hour_that_comes_twice_comes_in_the_first() -> None:
    found = spec.create(start_ms=at(2026, 10, 24, 12), cron="30 2 * * *", tz="Europe/Berlin")
    assert local(found, 2) == ["25 02:30 +0200", "26 02:30 +0100"]
    # Created in the second of the two hours: the first is over.
    late = spec.create(start_ms=at(2026, 10, 25, 2, 10, fold=1), cron="30 2 * * *", tz="Europe/Berlin")
    assert local(late, 1) == ["26 02:30 +0100"]


def test_what_runs_each_hour_goes_by_elapsed_time() -> None:
    autumn = spec.create(start_ms=at(2026, 10, 25, 1, 30), cron="30 * * * *", tz="Europe/Berlin")
    assert local(autumn, 3) == ["25 02:30 +0200", "25 02:30 +0100", "25 03:30 +0100"]
    spring = spec.create(start_ms=at(2026, 3, 29, 0, 30), cron="30 * * * *", tz="Europe/Berlin")
    assert local(spring, 3) == ["29 01:30 +0100", "29 03:30 +0200", "29 04:30 +0200"]


def test_the_wall_clock_is_followed_through_the_year() -> None:
    found = spec.create(start_ms=at(2026, 3, 28, 8), cron="0 9 * * *", tz="Europe/Berlin")
    assert local(found, 2) == ["28 09:00 +0100", "29 09:00 +0200"]


# -------------------------------------------------------------------------------------------------------------- missed


@pytest.mark.parametrize(("missed", "numbers"), [("skip", [6]), ("once", [5, 6]), ("all", [1, 2, 3, 4, 5, 6])])
def test_what_was_missed_is_dropped_given_once_or_given_in_full(missed: spec.Missed, numbers: list[int]) -> None:
    schedule = spec.create(start_ms=START, every_s=60, repeat=7, missed=missed)
    found, following = course.fire(schedule, START + 300_000 + MISSED_AFTER_MS)
    assert [number for number, _ in found] == numbers
    assert following is not None
    # Repeats count down for what was skipped, too.
    assert (following.fired, following.runs) == (6, ((START + 360_000, 1),))


def test_ten_seconds_are_not_late_and_more_are() -> None:
    schedule = spec.create(start_ms=START, every_s=60, missed="skip")
    assert course.fire(schedule, START + 10_000).occurrences == [(1, START)]
    assert course.fire(schedule, START + 10_001).occurrences == []


def test_a_run_that_ended_while_nobody_looked_still_gives_its_last_once() -> None:
    schedule = spec.create(start_ms=START, every_s=60, repeat=2, missed="once")
    assert course.fire(schedule, START + 10**9) == ([(3, START + 120_000)], None)
    skipping = spec.create(start_ms=START, every_s=60, repeat=2, missed="skip")
    assert course.fire(skipping, START + 10**9) == ([], None)


def test_what_is_over_the_limit_comes_with_the_next_call() -> None:
    schedule = spec.create(start_ms=START, every_s=1, repeat=4, missed="all")
    found, following = course.fire(schedule, START + 10**6, limit=3)
    assert [number for number, _ in found] == [1, 2, 3]
    assert following is not None
    assert following.due_ms == START + 3000
    assert course.fire(following, START + 10**6, limit=3) == ([(4, START + 3000), (5, START + 4000)], None)


def test_a_year_of_missed_minutes_is_caught_up_with_in_steps_that_give_one_message() -> None:
    following: Schedule | None = spec.create(start_ms=START, cron="* * * * *", missed="once")
    now_ms = START + 3 * STEPS * 60_000
    found: list[tuple[int, int]] = []
    for _ in range(4):
        assert following is not None
        occurrences, following = course.fire(following, now_ms)
        found += occurrences
    # The one that is due just now is on time.
    assert [number for number, _ in found] == [3 * STEPS - 1, 3 * STEPS]
    assert following is not None
    assert following.due_ms == now_ms + 60_000


# ------------------------------------------------------------------------------------------------- words and refusals


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"every_s": 300, "repeat": 3}, "every 5 m, 3 more"),
        ({"every_s": 300, "repeat": 0}, "every 5 m, the last one"),
        ({"every_s": 5400}, "every 1 h 30 m"),
        ({"cron": "0 9 * * 1-5", "tz": "Europe/Berlin"}, "cron 0 9 * * 1-5 Europe/Berlin"),
        (
            {"cron": "0 9 * * *", "every_s": 60, "repeat": 3, "delay_s": 5},
            "cron 0 9 * * * UTC, 5 s later, then every 1 m, 3 more",
        ),
    ],
)
def test_a_schedule_says_what_it_is(settings: dict[str, Any], text: str) -> None:
    assert str(spec.create(start_ms=START, **settings)) == text


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "needs every or cron"),
        ({"every_s": 0}, "every 0 must be from 0.001"),
        ({"every_s": 0.0004}, "every 0.0004 must be"),
        ({"every_s": float("nan")}, "every nan must be"),
        ({"every_s": 1e10}, "ten years"),
        ({"every_s": "5"}, "every '5' is not a duration"),
        ({"every_s": 1, "repeat": -1}, "repeat -1 must be a whole number, 0 or more"),
        ({"every_s": 1, "repeat": 1.5}, "repeat 1.5 must be"),
        ({"every_s": 1, "repeat": True}, "repeat True must be"),
        ({"every_s": 1, "delay_s": -1}, "delay -1 must be from 0"),
        ({"every_s": 1, "missed": "never"}, "missed 'never' must be one of skip, once, all"),
        ({"every_s": 1, "tz": "UTC"}, "tz 'UTC' goes with cron"),
        ({"cron": "61 * * * *"}, "cron '61 * * * *': bad minute; write minute hour day month weekday"),
        ({"cron": ""}, "cron '': wrong number of fields"),
        ({"cron": "@daily"}, "wrong number of fields"),
        ({"cron": "0 0 30 2 *"}, "bad day-of-month"),
        ({"cron": "0 0 LW * */7"}, "never fires"),
        ({"cron": "1" * 201}, "has 201 characters; give at most 200"),
        ({"cron": "* * * * *", "tz": "Mars/Base"}, "tz 'Mars/Base' is not a time zone"),
        ({"cron": "* * * * *", "tz": ""}, "tz '' is not a time zone"),
        ({"cron": "* * * * *", "tz": "../UTC"}, "is not a time zone"),
        ({"cron": "* * * * *", "repeat": 2}, "repeat 2 needs every"),
        ({"cron": "* * * * *", "every_s": 5}, "with cron needs repeat"),
        ({"cron": "* * * * *", "every_s": 60, "repeat": 100}, "more than 100 times while 100 repeats every 1 m"),
    ],
)
def test_what_makes_no_schedule_is_refused_in_one_line(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(errors.InvalidMessage) as refused:
        spec.create(start_ms=START, **settings)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_as_many_runs_as_are_allowed_may_be_under_way() -> None:
    made = spec.create(start_ms=START, cron="* * * * *", every_s=60, repeat=99)
    most = 0
    for _ in range(30):
        following = course.fire(made, made.due_ms).following
        assert following is not None
        made, most = following, max(most, len(following.runs))
    assert most <= spec.MAX_RUNS


@pytest.mark.parametrize(
    "foreign",
    [
        b"",
        b"\xc1",
        Schedule().encode(),
        Schedule(runs=((1, None),)).encode(),
        Schedule(1000, runs=((1, -5),)).encode(),
        Schedule(1000, runs=((1, 1), (2, 2))).encode(),
        Schedule(cron="* * * * *", repeat=0).encode(),
        Schedule(cron="* * * * *", repeat=None, firing_ms=1).encode(),
    ],
)
def test_a_foreign_schedule_is_refused_and_not_walked(foreign: bytes) -> None:
    with pytest.raises(errors.InvalidMessage, match="its schedule"):
        spec.decode(foreign)
