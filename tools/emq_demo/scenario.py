"""The plan of the demonstration: sixteen airlines as tenants; a calm half and a troubled half replay the same flights.

In the calm half every endpoint is healthy. The troubled half replays the flights at the same speed, with four
airlines in trouble. So each difference for the other twelve airlines comes from these four.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

import msgspec

from emq.runtime import errors, plurals
from emq_demo import flights
from emq_demo.flights import Flight
from emq_notices.notice import TOPIC as NOTICES

FLOODED = "FL"
"""Carrier of the flood: a small airline that suddenly gets `FLOOD_FACTOR` times its limit, twice as much as all others
together."""
FLOOD_FACTOR = 50
TROUBLES = {"US": "slow:2", "9E": "flaky:3", "F9": "down"}
"""Carrier to the behaviour of its endpoint in the troubled half, in the words of `Behaviour.parse` (receivers.py)."""
HEALTHY = "fast"
TROUBLE_SUFFIX = " in trouble"

DAYS_PER_S = 1.0
"""Days of schedule in a second, by default: about 900 calls a second, at noon twice as many. Sender, store and
receivers together can do about 2.5 times as much on two common cores. With a higher load the figures would describe
the machine."""
FIRST_DAY = 243
"""Days from the first of January to the first of September: from then on all sixteen airlines fly, the smallest of
them on most days."""
HEADROOM = 2.5
"""Limit of a tenant, as a multiple of its average rate: tenants without trouble run at about 40 % of their limit."""
MIN_LIMIT = 10
"""Lowest limit, in starts a second: a few flights of a small airline may fall into the same second."""

GROUP_QPS = 150.0
"""Largest quota of a group, in starts a second. Few large groups suit the embedded store: it has one disk, and each
queue of a batch costs time."""

PRIORITIES = ("high", "mid", "low")
MAX_ATTEMPTS = 4
BACKOFF_S = (0.5, 1.0, 2.0)
"""Seconds before each retry. They are short, so that you can watch messages die within seconds."""

MIN_SECONDS, MAX_SECONDS = 4.0, 600.0
_DAY_S = 86_400
_NEW_YORK = timezone(timedelta(hours=-5))


class Tenant(msgspec.Struct, frozen=True):
    """One airline.

    Attributes:
        carrier: its two-letter code, and the name of its topic.
        airline: its name.
        limit: the most starts a second that the airline allows; the qps of its topic.
        per_s: its flights a second, on average over a half.
        trouble: its trouble in the troubled half: "flood", or the behaviour of its receiver; "" for none.
    """

    carrier: str
    airline: str
    limit: int
    per_s: float
    trouble: str = ""


class Scenario(msgspec.Struct, frozen=True):
    """Attributes:
    tenants: the airlines, busiest first.
    half_s: length of each half, in seconds.
    days: number of days that each half replays.
    speed: seconds of schedule that pass in one second.
    window: the flights that each half replays, in order of schedule.
    flood: the flooded airline's flights of the whole year, those after the window first.
    flights_in_all: number of flights in the data.
    """

    tenants: tuple[Tenant, ...]
    half_s: float
    days: int
    speed: float
    window: Sequence[Flight]
    flood: Sequence[Flight]
    flights_in_all: int

    @property
    def victims(self) -> tuple[str, ...]:
        """The carriers without trouble; the verdict compares their waits in the two halves."""
        return tuple(t.carrier for t in self.tenants if not t.trouble)

    @property
    def flood_per_s(self) -> int:
        return FLOOD_FACTOR * next(t.limit for t in self.tenants if t.carrier == FLOODED)

    @property
    def receivers(self) -> dict[str, str]:
        """Name to behaviour of every receiver: the operators', and two of an airline with an endpoint in trouble."""
        healthy = {NOTICES: HEALTHY} | {t.carrier: HEALTHY for t in self.tenants}
        return healthy | {carrier + TROUBLE_SUFFIX: behaviour for carrier, behaviour in TROUBLES.items()}

    def describe(self) -> str:
        """Return one line with the replayed flights and their speed."""
        first = datetime.fromtimestamp(self.window[0].scheduled_s, _NEW_YORK).date()
        return (
            f"{len(self.window):,} of {self.flights_in_all:,} flights: {plurals.count(self.days, 'day')} from {first} "
            f"at {self.speed:,.0f}x, replayed twice"
        )


def of_receiver(name: str) -> str:
    """Return the carrier of a receiver's name."""
    return name.removesuffix(TROUBLE_SUFFIX)


def halves(seconds: float, days: int | None) -> tuple[float, int]:
    """Return the seconds of each half, and the number of days that each half replays.

    Args:
        seconds, days: as for `build`.

    Raises:
        InvalidSettings: `seconds` or `days` is out of range.
    """
    if not MIN_SECONDS <= seconds <= MAX_SECONDS:
        raise errors.InvalidSettings(f"seconds {seconds:g} must be from {MIN_SECONDS:g} to {MAX_SECONDS:g}")
    half_s = seconds / 2
    if days is None:
        days = min(flights.DAYS_IN_DATA, max(1, round(half_s * DAYS_PER_S)))
    if not 1 <= days <= flights.DAYS_IN_DATA:
        raise errors.InvalidSettings(f"days {days} must be from 1 to {flights.DAYS_IN_DATA}")
    return half_s, days


def build(year: Sequence[Flight], names: dict[str, str], seconds: float, days: int | None = None) -> Scenario:
    """Cut the scenario out of the year's flights.

    Args:
        year: all flights, by schedule.
        names: carrier to airline.
        seconds: length of both halves together, 4 to 600.
        days: number of days that each half replays, 1 to 365; None for `DAYS_PER_S` a second.

    Raises:
        InvalidSettings: as `halves`.
    """
    half_s, days = halves(seconds, days)
    from_s = year[0].scheduled_s + min(FIRST_DAY, flights.DAYS_IN_DATA - days) * _DAY_S
    until_s = from_s + days * _DAY_S
    window = [f for f in year if from_s <= f.scheduled_s < until_s]
    counts = collections.Counter(f.carrier for f in window)
    carriers = sorted(names, key=lambda carrier: (-counts[carrier], carrier))
    tenants = tuple(_tenant(carrier, names[carrier], counts[carrier] / half_s) for carrier in carriers)
    flooded = [f for f in year if f.carrier == FLOODED]
    later = [f for f in flooded if f.scheduled_s >= until_s]
    return Scenario(
        tenants=tenants,
        half_s=half_s,
        days=days,
        speed=timedelta(days=days).total_seconds() / half_s,
        window=window,
        flood=later + flooded[: len(flooded) - len(later)],
        flights_in_all=len(year),
    )


def _tenant(carrier: str, airline: str, per_s: float) -> Tenant:
    trouble = "flood" if carrier == FLOODED else TROUBLES.get(carrier, "")
    return Tenant(carrier, airline, _limit(per_s), per_s, trouble)


def _limit(per_s: float) -> int:
    wanted = max(MIN_LIMIT, per_s * HEADROOM)
    step = 5 if wanted < 50 else 10 if wanted < 200 else 50
    return math.ceil(wanted / step) * step
