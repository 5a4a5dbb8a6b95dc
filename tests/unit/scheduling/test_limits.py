"""Meters: no period is over its amount, debt is never lost, and `next_at` is the exact time."""

import math

import pytest

from emq_scheduling.limits.limits import DayMeter, InFlightMeter, Meter, Pace, WindowMeter, meter_of
from emq_scheduling.model import Limit


def second(amount: float) -> WindowMeter:
    return WindowMeter(amount, 1, 1)


def minute(amount: float) -> WindowMeter:
    return WindowMeter(amount, 1, 60)


def hour(amount: float) -> WindowMeter:
    return WindowMeter(amount, 60, 60)


def start(meter: Meter, units: float, now: float) -> bool:
    fits = meter.fits(units, now)
    if fits:
        meter.charge(units, now)
    return fits


def test_what_is_shown_of_a_second_is_not_the_little_of_its_beginning() -> None:
    meter = second(3)
    assert [start(meter, 1, 100.5) for _ in range(3)] == [True] * 3
    assert start(meter, 1, 101.1)
    assert (meter.used(101.2), meter.used_lately(101.2)) == (1, 3)
    assert meter.used_lately(102.1) == 1, "of the second before, and no earlier one"
    assert meter.used_lately(104.0) == 0
    of_day, of_minute = DayMeter(10, "UTC"), minute(10)
    for each in (of_day, of_minute):
        assert start(each, 4, 86_399.0)
    assert of_day.used_lately(86_400.5) == 0, "a new day begins with nothing"
    assert of_minute.used_lately(86_459.5) == 0


def test_debt_is_paid_alike_however_seldom_the_meter_is_asked() -> None:
    often, seldom = minute(10), minute(10)
    for meter in (often, seldom):
        meter.charge(4, 100.0)
        meter.charge(3, 117.0)
        meter.owe(777.5, 130.2)
    for tenth in range(1_302, 48_000):
        often.room(tenth / 10)
    for now in (4_800.0, 4_810.0, 4_837.0, 4_870.0):
        assert often.room(now) == pytest.approx(seldom.room(now), abs=1e-6)
        assert often.used(now) == pytest.approx(seldom.used(now), abs=1e-6)


def test_debt_below_an_amount_of_zero_lets_nothing_start() -> None:
    meter = second(0)
    meter.owe(5, 100.0)
    assert meter.next_at(1, 100.0) == math.inf
    assert meter.next_at(1e-12, 100.0) == math.inf
    assert meter.used(1e9) == 5
    meter.set_amount(5, 1e9)
    assert meter.room(1e9) == 0
    assert meter.room(1e9 + 1) == 5


def test_a_refund_makes_room_in_the_period_of_the_start() -> None:
    meter = minute(10)
    meter.charge(4, 100.0)
    meter.charge(6, 120.0)
    meter.refund(3, 100.2, 121.0)
    assert meter.room(121.0) == 3
    assert meter.room(160.0) == 4, "the 1 that was left of the first second leaves with it"
    meter.refund(1, 100.2, 170.0)
    assert meter.room(170.0) == 4, "it is out of the window"


def test_an_empty_meter_has_exactly_its_amount_as_room() -> None:
    for meter in (second(0.3), minute(0.3), DayMeter(0.3, "UTC"), InFlightMeter(0.3)):
        meter.charge(0.1, 100.0)
        meter.charge(0.2, 100.0)
        assert not meter.fits(0.1, 100.0)
        meter.refund(0.1, 100.0, 100.0)
        meter.refund(0.2, 100.0, 100.0)
        assert meter.used(100.0) == 0.0
        assert meter.room(100.0) == 0.3


def test_tenths_fill_an_amount_whatever_their_rounding() -> None:
    for meter in (second(1), minute(1), InFlightMeter(1)):
        assert sum(start(meter, 0.1, 100.0) for _ in range(20)) == 10


def test_rounding_does_not_add_up_in_a_window_that_is_never_empty() -> None:
    meter = minute(100)
    for second_ in range(20_000):
        assert start(meter, 0.1, second_)
    assert meter.used(19_999.0) == pytest.approx(6.0, abs=1e-12)


def test_an_amount_may_be_lowered_and_raised() -> None:
    meter = minute(10)
    meter.charge(8, 100.0)
    meter.set_amount(5, 101.0)
    assert meter.room(101.0) == 0
    assert meter.next_at(1, 101.0) == 160.0
    assert meter.room(160.0) == 5, "what was allowed when it started is no debt"
    meter.set_amount(20, 160.0)
    assert meter.room(160.0) == 20


def test_nothing_fits_before_the_present_cell_when_the_clock_goes_back() -> None:
    meter = second(3)
    meter.charge(3, 100.9)
    meter.charge(1, 101.1)
    assert not meter.fits(1, 100.95)
    assert meter.room(100.95) == 0
    assert meter.next_at(1, 100.95) == 101.0
    assert meter.room(101.0) == 2


def test_a_task_without_cost_is_not_limited() -> None:
    for meter in (second(0), minute(0), DayMeter(0, "UTC"), InFlightMeter(0), Pace(0)):
        assert meter.fits(0, 100.0)
        assert meter.next_at(0, 100.0) == 100.0
        assert not meter.fits(1, 100.0)
        assert meter.next_at(1, 100.0) == math.inf


def test_in_flight_units_come_back_at_their_end() -> None:
    meter = InFlightMeter(3)
    assert [start(meter, 1, 100.0) for _ in range(4)] == [True, True, True, False]
    assert meter.next_at(1, 100.0) == math.inf
    meter.refund(1, 100.0, 105.0)
    assert [start(meter, 1, 105.0) for _ in range(2)] == [True, False]


def test_a_lowered_in_flight_limit_lets_one_task_through() -> None:
    meter = InFlightMeter(8)
    meter.set_factor(0.5)
    assert [start(meter, 1, 0.0) for _ in range(5)] == [True] * 4 + [False]
    meter.refund(4, 0.0, 0.0)
    assert start(meter, 6, 0.0)
    assert not start(meter, 1, 0.0)
    meter.set_factor(0)
    meter.refund(6, 0.0, 0.0)
    assert not start(meter, 1, 0.0)


def test_a_day_ends_at_local_midnight_also_when_the_clocks_change() -> None:
    meter = DayMeter(10, "Europe/Berlin")
    saturday = 1_774_652_400.0  # 2026-03-28 00:00 in Berlin
    assert start(meter, 10, saturday + 3_600)
    assert meter.next_at(1, saturday + 3_600) == saturday + 86_400
    assert not meter.fits(1, saturday + 86_399.9)
    assert start(meter, 10, saturday + 86_400)
    assert meter.next_at(1, saturday + 90_000) == saturday + 86_400 + 23 * 3_600, "Sunday has 23 hours"


def test_debt_beyond_the_calendar_is_for_ever() -> None:
    meter = DayMeter(1, "UTC")
    meter.owe(1e9, 1_000.0)
    assert meter.next_at(1, 1_000.0) == math.inf


def test_what_was_used_today_counts_when_the_zone_changes() -> None:
    meter = DayMeter(10, "UTC")
    meter.charge(8, 1_000.0)
    meter.set_zone("Asia/Tokyo", 1_000.0)
    assert meter.room(1_000.0) == 2
    assert meter.next_at(3, 1_000.0) == 15 * 3_600


def test_a_pace_spreads_tasks_that_cost_more_than_its_second() -> None:
    pace = Pace(0.25)
    starts = [second_ for second_ in range(20) if start(pace, 1, float(second_))]
    assert starts == [0, 4, 8, 12, 16]
    assert pace.next_at(1, 19.0) == 20.0
    assert pace.next_at(1, 25.0, after=1) == 29.0


def test_each_period_has_its_meter() -> None:
    for per, over_at in (("second", 1.0), ("minute", 61.0), ("hour", 3_660.0), ("day", 86_400.0)):
        meter = meter_of(Limit("requests", 1, per), "UTC")  # type: ignore[arg-type]
        meter.charge(1, 0.0)
        assert meter.next_at(1, 0.0) == over_at
    assert isinstance(meter_of(Limit("slots", 1, "in_flight"), "UTC"), InFlightMeter)
