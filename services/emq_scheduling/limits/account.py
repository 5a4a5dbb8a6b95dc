"""The meters of one resource, and all meters that charge a task on it; see `emq_scheduling.limits.accounts`."""

from __future__ import annotations

import math

from emq_scheduling.limits import limits
from emq_scheduling.limits.calendars import Timetable
from emq_scheduling.limits.limits import BucketMeter, DayMeter, InFlightMeter, Meter, Pace, PeriodMeter
from emq_scheduling.limits.quote import Quote
from emq_scheduling.limits.reserve import Reserve
from emq_scheduling.model import PERIODS_S, Calendar, Kind, Limit, Period, Resource

Entry = tuple[Meter, str]
"""A meter, and the name of its limit, by which costs are found."""

GATE = ""
"""Name by which a task is charged to a gate: no limit has it, so a task costs 1."""

SAVED: tuple[Period, ...] = ("minute", "hour", "day")
"""Periods that outlast the change of a pool's owner, which takes seconds."""

PROBE_FACTOR = 1e-3
"""The factor of a resource that is probed: it gets one task at a time."""

Key = tuple[str, Period]
"""The name of a limit and its period; a resource has each once."""


class Account:
    """The meters of one resource, without those of its parents.

    Attributes:
        meters: of its limits.
        paces: of its health, by the name of the limit that they keep below.
        gate: of its health: how many tasks run at a time; None for any number.
        factor: the part of its limits that it gets.
        quotes: what providers said of its limits.
        reserves: of its limits per minute, hour and day, if their use is saved (`emq_scheduling.limits.usage`).
        changes_at: when its calendar changes its limits next.
    """

    __slots__ = (
        "_amounts",
        "_kinds",
        "_known",
        "_ran",
        "_table",
        "changes_at",
        "factor",
        "gate",
        "meters",
        "name",
        "paces",
        "paused",
        "quotes",
        "reserves",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.meters: dict[Key, Meter] = {}
        self.reserves: dict[Key, Reserve] = {}
        self.quotes: dict[Key, Quote] = {}
        self.paces: dict[str, Pace] = {}
        self.gate: InFlightMeter | None = None
        self.factor = 1.0
        self.paused = False
        self.changes_at = math.inf
        self._kinds: dict[Key, Kind | None] = {}  # of `_known`
        self._known: dict[Key, Meter] = {}  # also those of limits that are gone, whose use counts if they come back
        self._amounts: dict[Key, float] = {}
        self._ran = 1.0  # number of its tasks in flight when its factor fell below 1
        self._table: Timetable | None = None

    def follow(self, resource: Resource, calendar: Calendar | None, now: float) -> None:
        """Take over the limits of the resource; those that remain keep their use."""
        self.turn(now)
        self.paused = resource.paused
        zone = "UTC" if calendar is None else calendar.zone
        self._table = None if calendar is None or not calendar.hours else Timetable(zone, calendar.hours)
        self._amounts = {(limit.name, limit.per): limit.amount for limit in resource.limits}
        amounts = self.amounts_at(now)
        self.meters = {}
        self.quotes = {key: quote for key, quote in self.quotes.items() if key in self._amounts}
        for limit in resource.limits:
            key = (limit.name, limit.per)
            meter = self.meters[key] = self._meter_of(limit, limit.zone or zone, now)
            meter.set_amount(amounts[key], now)
        self._known = {key: meter for key, meter in self._known.items() if key in self._amounts or meter.used(now) > 0}
        self._kinds = {key: self._kinds[key] for key in self._known}
        self.changes_at = self.changes_after(now)
        self.set_factor(self.factor, now)

    def counts(self, now: float) -> bool:
        """Return whether any use still counts, also of limits that are gone."""
        return any(meter.used(now) > 0 for meter in self._known.values())

    def _meter_of(self, limit: Limit, zone: str, now: float) -> Meter:
        """Return the meter of a limit; one that counts in another way than before begins with the use of the former."""
        key = (limit.name, limit.per)
        meter = self._known[key] = meter_for(limit, zone, self._known.get(key), self._kinds.get(key), now)
        self._kinds[key] = limit.counts
        return meter

    def kind_of(self, key: Key) -> Kind | None:
        """Return how one of its limits counts; None in flight."""
        return self._kinds[key]

    def save(self) -> None:
        """Start only tasks that the database counts as used already, under limits per minute, hour and day."""
        saved = [key for key in self.meters if key[1] in SAVED]
        self.reserves = {key: self.reserves.get(key) or Reserve() for key in saved}

    def tell(self, key: Key, left: float, reset_s: float, now: float, since: float) -> bool:
        """Allow no more of a limit than a provider says; return whether this is its first word. See `Accounts.tell`."""
        is_first = key not in self.quotes
        quote = self.quotes.setdefault(key, Quote())
        meter = self.meters[key]
        comes = max(0.0, meter.most - left) if isinstance(meter, BucketMeter) else 0.0
        quote.tell(left, min(reset_s, PERIODS_S[key[1]]), now, comes, since)
        return is_first

    def turn(self, now: float) -> None:
        """Let the calendar change the limits, if it is time."""
        if now < self.changes_at:
            return
        meters = [meter for meter in self.meters.values() if isinstance(meter, PeriodMeter)]
        has_past = any(isinstance(meter, BucketMeter) or meter.debt > 0 for meter in meters)
        while self.changes_at <= now:
            at = self.changes_at if has_past else now  # buckets refill, and debt is paid, by the amounts of the time
            for key, amount in self.amounts_at(at).items():
                self.meters[key].set_amount(amount, at)
            self.changes_at = self.changes_after(at)
        self.set_factor(self.factor, now)

    def amounts_at(self, now: float) -> dict[Key, float]:
        """Return the amounts that hold at a time."""
        if self._table is None:
            return self._amounts
        changed = {name: amount for hours in self._table.active(now) for name, amount in hours.amounts.items()}
        return {(name, per): changed.get(name, amount) for (name, per), amount in self._amounts.items()}

    def is_changing(self, period: Period) -> bool:
        """Return whether the calendar has amounts for limits of a period."""
        names = {name for name, per in self._amounts if per == period}
        return self._table is not None and any(names & each.amounts.keys() for each in self._table.hours)

    def changes_after(self, now: float) -> float:
        """Return when the calendar changes the amounts next after a time; infinity for never."""
        return math.inf if self._table is None else self._table.changes_at(now)

    def set_factor(self, factor: float, now: float, in_flight: int = 0) -> None:
        """Let the resource have this part of its limits, 0 to 1, without changing what its limits count.

        Args:
            in_flight: number of its tasks that run now; needed where the factor was 1.
        """
        if self.factor >= 1:
            self._ran = max(1.0, float(in_flight))
        rates = self._rates() if PROBE_FACTOR < factor < 1 else {}
        if factor >= 1 or (factor > PROBE_FACTOR and self.is_counted):
            self.gate = None
        elif factor <= PROBE_FACTOR:
            self.gate = self.gate if self.factor <= PROBE_FACTOR and self.gate else InFlightMeter(1.0)
        elif self.gate is None or self.factor <= PROBE_FACTOR:
            self.gate = InFlightMeter(self._ran)
        self.factor = factor
        for meter in (*self.meters.values(), self.gate):
            if isinstance(meter, InFlightMeter):
                meter.set_factor(factor)
        for name in [name for name in self.paces if name not in rates]:
            del self.paces[name]
        for name, rate in rates.items():
            if name in self.paces:
                self.paces[name].set_amount(rate * factor, now)
            else:
                self.paces[name] = Pace(rate * factor)

    @property
    def is_counted(self) -> bool:
        """Whether it has a limit that can be lowered for its health."""
        return any(per != "day" for _, per in self.meters)

    def entries(self) -> list[Entry]:
        found: list[Entry] = [(meter, name) for (name, _), meter in self.meters.items()]
        found += [(pace, name) for name, pace in self.paces.items()]
        found += [(reserve, name) for (name, _), reserve in self.reserves.items()]
        found += [(quote, name) for (name, _), quote in self.quotes.items()]
        return found if self.gate is None else [*found, (self.gate, GATE)]

    def _rates(self) -> dict[str, float]:
        """Return units a second by limit name: of the limit with the shortest period, but not of a day."""
        found: dict[str, tuple[float, float]] = {}
        for (name, per), meter in self.meters.items():
            if per in ("second", "minute", "hour"):
                period_s = PERIODS_S[per]
                if name not in found or period_s < found[name][0]:
                    found[name] = (period_s, meter.amount / period_s)
        return {name: rate for name, (_, rate) in found.items()}


def meter_for(limit: Limit, zone: str, former: Meter | None, kind: Kind | None, now: float) -> Meter:
    """Return the meter of a limit; one that counts in another way than the former begins with the use of that.

    Args:
        zone: the zone whose midnights divide the days.
        former: the limit's meter until now, None for none; and `kind`: how that counts.
    """
    meter = former
    if meter is None or kind != limit.counts:
        meter = limits.meter_of(limit, zone)
        if former is not None:
            meter.owe(former.used(now), now)
    if isinstance(meter, DayMeter) and meter.zone != zone:
        meter.set_zone(zone, now)
    if isinstance(meter, BucketMeter):
        meter.set_burst(limit.burst, now)
    return meter


class Path:
    """A resource and its parents: all meters that charge a task on it.

    Attributes:
        accounts: of the resource and its parents, the nearest first.
        entries: their meters.
        ids: the identities of these meters.
        periods, in_flight: those of limits with periods, and those in flight.
        paused: whether one of them is paused, or has the factor 0.
        changes_at: when a calendar changes one of their limits next; minus infinity if they may have changed.
        line: the names of the accounts.
    """

    __slots__ = ("accounts", "changes_at", "entries", "ids", "in_flight", "line", "paused", "periods")

    def __init__(self, accounts: list[Account]) -> None:
        self.accounts = accounts
        self.line = [account.name for account in accounts]
        self.entries: tuple[Entry, ...] = ()
        self.ids: frozenset[int] = frozenset()
        self.periods: tuple[Entry, ...] = ()
        self.in_flight: tuple[tuple[InFlightMeter, str], ...] = ()
        self.paused = False
        self.changes_at = -math.inf

    def forget(self) -> None:
        """The meters of the accounts have changed: take them over at the next `turn`."""
        self.changes_at = -math.inf

    def turn(self, now: float) -> None:
        """Let calendars change the limits, if it is time, and take over changed meters."""
        for account in self.accounts:
            account.turn(now)
        self.entries = tuple(entry for account in self.accounts for entry in account.entries())
        self.ids = frozenset(id(meter) for meter, _ in self.entries)
        self.periods = tuple(entry for entry in self.entries if not isinstance(entry[0], InFlightMeter))
        self.in_flight = tuple((meter, name) for meter, name in self.entries if isinstance(meter, InFlightMeter))
        self.paused = any(account.paused or account.factor <= 0 for account in self.accounts)
        self.changes_at = min(account.changes_at for account in self.accounts)
