"""Meters and accounts under arbitrary use, recounted independently: no period is over, and no debt is lost."""

from __future__ import annotations

import datetime
import math
import zoneinfo
from collections import defaultdict
from fractions import Fraction

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emq_scheduling.limits.accounts import Accounts, Charge
from emq_scheduling.limits.limits import Meter, WindowMeter, meter_of
from emq_scheduling.model import KINDS, PERIODS_S, Calendar, Hours, Kind, Limit, Period, Pool, Resource

Counted = tuple[Period, Kind]
"""A period, and how it counts."""

CELLS: dict[Counted, tuple[float, int]] = {
    ("second", "calendar"): (1, 1),
    ("second", "rolling"): (1 / 64, 65),
    ("minute", "calendar"): (60, 1),
    ("minute", "rolling"): (1, 61),
    ("hour", "calendar"): (3_600, 1),
    ("hour", "rolling"): (60, 61),
    ("day", "calendar"): (86_400, 1),
    ("day", "rolling"): (1_440, 61),
}
"""Seconds of a cell, and cells in a window, in UTC."""

patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine is no failure."""

lengths: st.SearchStrategy[Period] = st.sampled_from(["second", "minute", "hour", "day"])
periods = st.sampled_from(sorted(CELLS))
gaps_ms = st.one_of(st.integers(0, 300), st.integers(0, 90_000), st.integers(0, 200_000_000))
steps = st.lists(st.tuples(gaps_ms, st.integers(1, 12)), min_size=1, max_size=60)


class Model:
    """A window recounted in exact fractions, cell by cell, with debt paid before anything starts."""

    def __init__(self, amount: int, per: Counted) -> None:
        self.amount = amount
        self.cell_s, self.n = CELLS[per]
        self.held: dict[int, Fraction] = defaultdict(Fraction)
        self.debt = Fraction()
        self.cell = 0

    def go(self, cell: int) -> None:
        while self.cell < cell and self.debt > 0:
            self.cell += 1
            self._pay()
        self.cell = cell
        self._pay()

    def room(self) -> Fraction:
        window = sum((self.held.get(self.cell - back, Fraction()) for back in range(self.n)), Fraction())
        return self.amount - window - self.debt

    def owe(self, units: Fraction) -> None:
        self.debt += units
        self._pay()

    def _pay(self) -> None:
        paid = min(self.debt, self.room() + self.debt)
        if paid > 0:
            self.held[self.cell] += paid
            self.debt -= paid


@patient
@given(periods, st.integers(1, 20), st.lists(st.tuples(gaps_ms, st.integers(1, 4), st.integers(0, 100)), max_size=40))
def test_debt_and_room_are_those_of_an_exact_recount(
    per: Counted, amount: int, wanted: list[tuple[int, int, int]]
) -> None:
    meter, model, ms = meter_of(Limit("requests", amount, *per), "UTC"), Model(amount, per), 0
    for gap_ms, units, owed in wanted:
        ms += gap_ms
        model.go(int(ms // (model.cell_s * 1000)))
        now = ms / 1000
        assert meter.room(now) == max(0, model.room())
        assert meter.used(now) == amount - model.room()
        assert meter.fits(units, now) == (units <= model.room())
        if meter.fits(units, now):
            meter.charge(units, now)
            model.held[model.cell] += units
        meter.owe(owed, now)
        model.owe(Fraction(owed))


def _meter(per: Counted, amount: int, past: list[tuple[int, int, int]]) -> tuple[Meter, float]:
    meter, ms = meter_of(Limit("requests", amount, *per), "UTC"), 0
    for gap_ms, units, owed in past:
        ms += gap_ms
        if meter.fits(units, ms / 1000):
            meter.charge(units, ms / 1000)
        meter.owe(owed, ms / 1000)
    return meter, ms / 1000


@patient
@given(
    periods,
    st.integers(1, 20),
    st.lists(st.tuples(st.integers(0, 40_000), st.integers(1, 4), st.integers(0, 5)), max_size=20),
    st.integers(1, 22),
    st.integers(0, 20),
)
def test_next_at_is_the_first_time_at_which_it_fits(
    per: Counted, amount: int, past: list[tuple[int, int, int]], units: int, after: int
) -> None:
    meter, now = _meter(per, amount, past)
    if after and not meter.fits(after, now):
        after = 0
    at = meter.next_at(units, now, after)
    assert meter.copy().next_at(units, now, after) == at
    if after:
        meter.charge(after, now)
        assert meter.next_at(units, now) == at
    assert (at == math.inf) == (units > amount)
    if at < math.inf:
        assert at >= now
        assert meter.copy().fits(units, at)
        assert at == now or not meter.copy().fits(units, math.nextafter(at, 0))


@patient
@given(periods, st.integers(1, 12), st.integers(1, 3), st.data())
def test_a_backlog_uses_all_of_an_amount(per: Counted, amount: int, units: int, data: st.DataObject) -> None:
    """Under a backlog the scheduler sleeps until `next_at`; each full window then holds all that the costs can fill."""
    meter = meter_of(Limit("requests", amount, *per), "UTC")
    cell_s, n = CELLS[per]
    now, starts = data.draw(st.integers(0, 200_000)) / 1000, []
    first = now
    while now < first + 3 * n * cell_s and (at := meter.next_at(units, now)) < math.inf:
        now = at
        meter.charge(units, now)
        starts.append(now)
    begins = (first // cell_s + n) * cell_s
    used = units * sum(begins <= at < begins + n * cell_s for at in starts)
    assert used == amount // units * units


@patient
@given(st.integers(1, 60), st.lists(st.tuples(st.integers(-400, 900), st.integers(1, 3)), max_size=80))
def test_a_clock_that_goes_back_a_little_uses_no_second_twice(amount: int, wanted: list[tuple[int, int]]) -> None:
    meter, ms, used = WindowMeter(amount, 1, 1), 5_000, defaultdict(int)
    for gap_ms, units in wanted:
        ms = max(0, ms + gap_ms)
        at = meter.next_at(units, ms / 1000)
        assert at >= ms / 1000
        if meter.fits(units, ms / 1000):
            meter.charge(units, ms / 1000)
            used[ms // 1000] += units
    assert all(each <= amount for each in used.values())


@patient
@given(
    lengths,
    st.integers(1, 20),
    st.one_of(st.none(), st.integers(1, 30)),
    st.lists(st.tuples(gaps_ms, st.integers(1, 4), st.integers(0, 4)), max_size=40),
)
def test_a_bucket_never_lets_more_start_than_its_burst_and_what_came_since(
    per: Period, amount: int, burst: int | None, wanted: list[tuple[int, int, int]]
) -> None:
    meter, ms, used = meter_of(Limit("requests", amount, per, "bucket", burst), "UTC"), 0, list[tuple[int, int]]()
    full, per_ms = burst or amount, Fraction(amount) / Fraction(1_000 * PERIODS_S[per])
    for gap_ms, units, owed in wanted:
        ms += gap_ms
        at = meter.next_at(units, ms / 1_000)
        assert (at == math.inf) == (units > full)
        if ms / 1_000 < at < math.inf:
            assert not meter.copy().fits(units, max(ms / 1_000, at - 1e-3))
            assert meter.copy().fits(units, at)
        if meter.fits(units, ms / 1_000):
            meter.charge(units, ms / 1_000)
            used.append((ms, units))
            since = 0
            for earlier, (began, _) in enumerate(used):
                since = sum(units for _, units in used[earlier:])
                assert since <= full + (ms - began) * per_ms + Fraction(1, 10**6)
        else:
            meter.owe(owed, ms / 1_000)
            used.append((ms, owed))


TREE = {"provider": None, "x": "provider", "y": "provider", "x1": "x", "x2": "x", "y1": "y"}


@patient
@given(
    st.dictionaries(
        st.tuples(st.sampled_from(sorted(TREE)), st.sampled_from(["requests", "tokens"]), lengths),
        st.tuples(st.integers(0, 15), st.sampled_from(["rolling", "calendar"])),
        max_size=8,
    ),
    st.dictionaries(st.sampled_from(sorted(TREE)), st.integers(0, 4), max_size=3),
    st.lists(
        st.tuples(st.sampled_from(["x1", "x2", "y1", "x"]), gaps_ms, st.integers(0, 4), st.integers(0, 4)), max_size=60
    ),
    st.data(),
)
def test_no_limit_of_a_resource_or_a_parent_is_ever_over(
    amounts: dict[tuple[str, str, Period], tuple[int, Kind]],
    slots: dict[str, int],
    wanted: list[tuple[str, int, int, int]],
    data: st.DataObject,
) -> None:
    limits: dict[str, list[Limit]] = defaultdict(list)
    for (name, what, per), (units, kind) in amounts.items():
        limits[name].append(Limit(what, units, per, kind))
    for name, amount in slots.items():
        limits[name].append(Limit("slots", amount, "in_flight"))
    pool = Pool("p", resources={n: Resource(parent=up, limits=tuple(limits[n])) for n, up in TREE.items()})
    of, ms = Accounts(pool, 0.0), 0
    started: list[tuple[int, str, dict[str, float]]] = []
    running: list[tuple[str, Charge]] = []
    for name, gap_ms, requests, tokens in wanted:
        ms += gap_ms
        costs = {"requests": float(requests), "tokens": float(tokens)}
        if running and data.draw(st.booleans()):
            running.pop(data.draw(st.integers(0, len(running) - 1)))[1].end(ms / 1000)
        fits = of.fits(name, costs, ms / 1000)
        at = of.next_at(name, costs, ms / 1000)
        charge = of.charge(name, costs, ms / 1000)
        assert (charge is not None) == fits == (at == ms / 1000)
        if charge is not None:
            started.append((ms, name, costs))
            running.append((name, charge))
        for at, amount in slots.items():
            assert sum(_is_below(each, at) for each, _ in running) <= amount
    for (name, what, per), (amount, kind) in amounts.items():
        cell_s, n = CELLS[per, kind]
        below = [(at // (cell_s * 1000), costs[what]) for at, each, costs in started if _is_below(each, name)]
        for first, _ in below:
            assert sum(cost for cell, cost in below if 0 <= cell - first < n) <= amount
        if kind == "rolling":
            period_ms = 1_000 * PERIODS_S[per]
            exact = [(at, costs[what]) for at, each, costs in started if _is_below(each, name)]
            for first, _ in exact:
                assert sum(cost for at, cost in exact if 0 <= at - first < period_ms) <= amount


def _is_below(name: str, above: str) -> bool:
    at: str | None = name
    while at is not None and at != above:
        at = TREE[at]
    return at == above


@patient
@given(
    lengths,
    st.tuples(st.integers(0, 23), st.integers(1, 6), st.integers(0, 12)),
    st.integers(0, 12),
    st.sampled_from(["UTC", "Europe/Berlin", "America/Sao_Paulo"]),
    st.lists(st.tuples(st.integers(0, 20_000_000), st.integers(1, 6)), min_size=1, max_size=25),
)
def test_limits_that_change_by_the_hour_are_kept_and_next_at_is_the_first_time(
    per: Period, span: tuple[int, int, int], own: int, zone: str, wanted: list[tuple[int, int]]
) -> None:
    """Each start is checked against what holds at its minute, by the clock on the wall."""
    start, length, amount = span
    hours = Hours(f"{start:02}:30", f"{(start + length) % 24:02}:30", amounts={"requests": amount})
    pool = Pool(
        "p",
        resources={"a": Resource(limits=(Limit("requests", own, per),), calendar="c")},
        calendars={"c": Calendar(zone, (hours,))},
    )
    now = datetime.datetime(2018, 11, 3, tzinfo=zoneinfo.ZoneInfo(zone)).timestamp()
    of, started = Accounts(pool, now), []
    for gap_ms, units in wanted:
        now += gap_ms / 1000
        costs = {"requests": float(units)}
        at = of.next_at("a", costs, now)
        if at > now and at < math.inf:
            assert not of.fits("a", costs, now)
            twin = _replayed(pool, started)
            assert not twin.fits("a", costs, math.nextafter(at, 0))
            now = at
        if of.charge("a", costs, now) is None:
            assert at == math.inf
            continue
        assert at < math.inf
        started.append((now, units))
        assert _window(started, now, per, zone) <= _amount(hours, own, now, zone)


def _replayed(pool: Pool, started: list[tuple[float, int]]) -> Accounts:
    of = Accounts(pool, started[0][0] if started else 0.0)
    for now, units in started:
        assert of.charge("a", {"requests": float(units)}, now) is not None
    return of


def _window(started: list[tuple[float, int]], now: float, per: Period, zone: str) -> int:
    def cell(at: float) -> int:
        if per == "day":
            return datetime.datetime.fromtimestamp(at, zoneinfo.ZoneInfo(zone)).toordinal()
        return int(at // CELLS[per, KINDS[per]][0])

    return sum(units for at, units in started if cell(now) - cell(at) < CELLS[per, KINDS[per]][1])


def _amount(hours: Hours, own: int, now: float, zone: str) -> float:
    wall = datetime.datetime.fromtimestamp(now, zoneinfo.ZoneInfo(zone)).strftime("%H:%M")
    is_over_midnight = hours.start >= hours.end
    holds = wall >= hours.start or wall < hours.end if is_over_midnight else hours.start <= wall < hours.end
    return hours.amounts["requests"] if holds else own
