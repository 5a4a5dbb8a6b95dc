"""Hours hold by the clock on the wall, also where it is put forward and back."""

import datetime
import math
import random
import zoneinfo

import pytest

from emq_scheduling.limits import calendars
from emq_scheduling.limits.calendars import Timetable, allowed_at
from emq_scheduling.model import Hours

BERLIN = "Europe/Berlin"


def at(zone: str, text: str, fold: int = 0) -> float:
    """Return the time at which clocks show a text such as "2026-03-29 08:00"."""
    return datetime.datetime.fromisoformat(text).replace(tzinfo=zoneinfo.ZoneInfo(zone), fold=fold).timestamp()


def test_a_task_waits_for_the_hours_of_its_own_zone() -> None:
    hours = (Hours("08:00", "20:00"),)
    now = at("UTC", "2026-07-01 06:30")
    assert allowed_at((), "UTC", now) == now
    assert allowed_at(hours, "UTC", now) == at("UTC", "2026-07-01 08:00")
    assert allowed_at(hours, BERLIN, now) == now
    assert allowed_at(hours, "America/New_York", now) == at("America/New_York", "2026-07-01 08:00")
    assert allowed_at(hours, "Asia/Kolkata", at("Asia/Kolkata", "2026-07-01 20:00")) == at(
        "Asia/Kolkata", "2026-07-02 08:00"
    )


def test_hours_of_some_days_wait_for_the_next_of_them() -> None:
    hours = (Hours("09:00", "17:00", "mon-fri"), Hours("10:00", "12:00", "sat"))
    friday = at("UTC", "2026-07-03 17:00")
    assert allowed_at(hours, "UTC", friday) == at("UTC", "2026-07-04 10:00")
    assert allowed_at(hours, "UTC", at("UTC", "2026-07-04 12:00")) == at("UTC", "2026-07-06 09:00")


def test_hours_may_end_on_the_next_day() -> None:
    hours = (Hours("22:00", "06:00", "sun"),)
    assert allowed_at(hours, "UTC", at("UTC", "2026-07-06 05:59")) == at("UTC", "2026-07-06 05:59")
    assert allowed_at(hours, "UTC", at("UTC", "2026-07-06 06:00")) == at("UTC", "2026-07-12 22:00")


def test_the_whole_week_never_changes() -> None:
    table = Timetable(BERLIN, (Hours(),))
    now = at(BERLIN, "2026-03-28 12:00")
    assert table.active(now) == (Hours(),)
    assert table.changes_at(now) == math.inf


def test_hours_in_the_missing_hour_begin_when_the_clocks_change() -> None:
    table = Timetable(BERLIN, (Hours("02:30", "04:00"),))
    night = at(BERLIN, "2026-03-29 01:00")
    changes = table.changes_at(night)
    assert changes == at(BERLIN, "2026-03-29 03:00")
    assert table.changes_at(changes) == at(BERLIN, "2026-03-29 04:00")
    assert allowed_at((Hours("02:10", "02:50"),), BERLIN, night) == at(BERLIN, "2026-03-30 02:10"), "there are none"


def test_hours_in_the_repeated_hour_hold_twice() -> None:
    table = Timetable(BERLIN, (Hours("02:10", "02:50"),))
    edges = [at(BERLIN, "2026-10-25 01:00")]
    for _ in range(5):
        edges.append(table.changes_at(edges[-1]))
    assert edges[1:] == [
        at(BERLIN, "2026-10-25 02:10"),
        at(BERLIN, "2026-10-25 02:50"),
        at(BERLIN, "2026-10-25 02:10", fold=1),
        at(BERLIN, "2026-10-25 02:50", fold=1),
        at(BERLIN, "2026-10-26 02:10"),
    ]


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        (BERLIN, "2026-03-29", 23),
        (BERLIN, "2026-10-25", 25),
        ("America/Sao_Paulo", "2018-11-04", 23),  # midnight does not exist
        ("America/Havana", "2026-11-01", 25),  # 00:00 to 01:00 is repeated
        ("Atlantic/Azores", "2026-10-25", 25),
        ("Australia/Lord_Howe", "2026-10-04", 23.5),
        ("Asia/Kathmandu", "2026-10-04", 24),
        ("America/St_Johns", "2006-10-29", 25),  # at 00:01 back to 23:01 of the day before, where no new day begins
    ],
)
def test_a_day_is_as_long_as_its_clocks_say(zone: str, day: str, hours: float) -> None:
    number = datetime.date.fromisoformat(day).toordinal()
    begins, ends = calendars.day_start(zone, number), calendars.day_start(zone, number + 1)
    assert (ends - begins) / 3_600 == hours
    assert calendars.day_at(zone, begins) == number
    assert calendars.day_at(zone, math.nextafter(begins, 0)) == number - 1
    assert calendars.day_at(zone, math.nextafter(ends, 0)) == number
    assert datetime.datetime.fromtimestamp(begins, zoneinfo.ZoneInfo(zone)).toordinal() == number


def test_a_date_that_was_left_out_has_no_length() -> None:
    left_out = datetime.date(2011, 12, 30).toordinal()
    assert calendars.day_start("Pacific/Apia", left_out) == calendars.day_start("Pacific/Apia", left_out + 1)
    assert calendars.day_at("Pacific/Apia", calendars.day_start("Pacific/Apia", left_out)) == left_out + 1


@pytest.mark.parametrize("zone", [BERLIN, "America/Havana", "Australia/Lord_Howe", "America/Sao_Paulo"])
def test_changes_are_those_that_a_look_at_each_minute_finds(zone: str) -> None:
    random_ = random.Random(7)
    for _ in range(4):
        hours = tuple(
            Hours(f"{random_.randrange(24):02}:{random_.randrange(60):02}", end, days)
            for end, days in (("00:30", "sat,sun"), ("02:45", ""), ("24:00", "fri-sun"))
        )
        table, fresh = Timetable(zone, hours), Timetable(zone, hours)
        for begins in ("2026-03-28 00:00", "2026-10-24 12:00", "2018-11-03 12:00", "2026-10-31 12:00"):
            now = at(zone, begins)
            for minute in range(2 * 24 * 60):
                before, after = now + 60 * minute, now + 60 * (minute + 1)
                assert (table.changes_at(before) <= after) == (table.active(before) != fresh._at(after)), (zone, before)
