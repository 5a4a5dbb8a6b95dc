"""Counting again from the records: what was over a limit is found, and what the accounts let start is not accused."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from emq_scheduling.limits.accounts import Accounts, Charge
from emq_scheduling.model import Calendar, Hours, Limit, Pool, Resource, TaskType
from emq_scheduling.records.proof import LimitProof, Recount
from emq_scheduling.records.records import Attempt

T0 = 1_700_000_000
"""14 November 2023, 22:13:20 UTC, a Tuesday."""


def row(at_s: float, took_s: float = 0.1, resource: str = "acme-1", version: int = 1, **fields: Any) -> Attempt:
    started_us = T0 * 1_000_000 + int(at_s * 1e6)
    given: dict[str, Any] = {
        "task": f"t{at_s}",
        "type": "code",
        "tenant": "",
        "resource": resource,
        "key": "",
        "submitted_us": 0,
        "deadline_us": 0,
        "started_us": started_us,
        "ended_us": started_us + int(took_s * 1e6),
        "outcome": "done",
        "attempt": 1,
        "version": version,
        "costs": {},
        "actual": None,
        "error": "",
        "result": b"",
        "host": "h",
    }
    return Attempt(**{**given, **fields})


def pool(*limits: Limit, parent: tuple[Limit, ...] = (), calendar: Calendar | None = None, **more: Resource) -> Pool:
    named = None if calendar is None else "hours"
    resources = {
        "acme": Resource(limits=parent),
        "acme-1": Resource("acme", limits, takes={"code": {}}, calendar=named),
        **{name.replace("_", "-"): resource for name, resource in more.items()},
    }
    calendars = {} if calendar is None else {"hours": calendar}
    return Pool("sms", resources=resources, types={"code": TaskType()}, calendars=calendars)


def told(versions: Mapping[int, Pool] | Pool, *rows: Attempt) -> dict[str, LimitProof]:
    recount = Recount({1: versions} if isinstance(versions, Pool) else versions)
    for each in sorted(rows, key=lambda each: each.started_us):
        recount.add(each)
    assert recount.unproven == 0
    return {f"{each.limit}/{each.per} of {each.resource}": each for each in recount.result()}


def one(versions: Mapping[int, Pool] | Pool, *rows: Attempt) -> LimitProof:
    [found] = told(versions, *rows).values()
    return found


# ---------------------------------------------------------------------------------------------------------- by period


@pytest.mark.parametrize(
    ("per", "inside_s", "beyond_s"),
    [("second", 0.999, 1.0), ("minute", 59.999, 60.0), ("hour", 3_599.999, 3_600.0)],
)
def test_a_start_counts_for_its_period_and_no_longer(per: Any, inside_s: float, beyond_s: float) -> None:
    limited = pool(Limit("n", 2, per))
    assert one(limited, row(0), row(0.5), row(beyond_s)).over_s == 0
    found = one(limited, row(0), row(0.5), row(inside_s))
    assert (found.over_s, found.peak, found.amount) == (1, 3, 2)
    assert found.first_over_us == (T0 + inside_s) * 1_000_000


def test_a_minute_may_begin_anywhere() -> None:
    limited = pool(Limit("n", 2, "minute"))
    assert one(limited, row(30), row(31), row(89.9)).over_s == 1
    assert one(limited, row(30), row(31), row(90), row(91), row(150)).over_s == 0


def test_a_day_ends_at_midnight_of_its_calendar() -> None:
    midnight_utc = 6400  # T0 is 22:13:20
    limited = pool(Limit("n", 1, "day"))
    assert one(limited, row(midnight_utc - 1), row(midnight_utc)).over_s == 0
    assert one(limited, row(midnight_utc), row(midnight_utc + 86_399)).over_s == 1
    berlin = pool(Limit("n", 1, "day"), calendar=Calendar("Europe/Berlin"))
    assert one(berlin, row(midnight_utc - 1), row(midnight_utc)).over_s == 1
    assert one(berlin, row(midnight_utc - 3601), row(midnight_utc - 3600)).over_s == 0


def test_seconds_over_are_counted_once_each() -> None:
    limited = pool(Limit("n", 1, "second"))
    found = one(limited, row(0), row(0.1), row(0.2), row(1), row(2), row(2.5))
    assert (found.over_s, found.starts, found.peak) == (2, 6, 3)


def test_what_runs_at_the_same_time_counts_in_flight() -> None:
    limited = pool(Limit("slots", 2, "in_flight"))
    assert one(limited, row(0, 5), row(1, 5), row(5, 5), row(6, 5)).over_s == 0
    found = one(limited, row(0, 5), row(1, 5), row(4.9, 5))
    assert (found.over_s, found.peak) == (1, 3)
    assert one(limited, row(0, ended_us=0, outcome="running"), row(1, 5), row(1000, 1), row(1000.5, 1)).over_s == 1


def test_retried_attempts_count_as_starts_and_tasks_that_never_started_do_not() -> None:
    limited = pool(Limit("n", 2, "second"))
    never = row(0.3, resource="", outcome="expired")
    again = [row(i / 10, outcome="failed", attempt=i + 1, task="t") for i in range(3)]
    assert one(limited, *again, never).over_s == 1
    assert one(limited, *again[:2], never).starts == 2


# ------------------------------------------------------------------------------------------------------------ charges


def test_parents_are_charged_for_all_their_children() -> None:
    limit = Limit("n", 2, "second")
    nested = pool(limit, parent=(Limit("n", 3, "second"),), acme_2=Resource("acme", (limit,), {"code": {}}))
    rows = [row(0), row(0.1), row(0.2, resource="acme-2"), row(0.3, resource="acme-2")]
    found = told(nested, *rows)
    assert {name: each.over_s for name, each in found.items()} == {
        "n/second of acme": 1,
        "n/second of acme-1": 0,
        "n/second of acme-2": 0,
    }
    assert told(nested, *rows[:3])["n/second of acme"].over_s == 0


def test_costs_of_each_limit_count_and_fractions_are_not_accused_of_rounding() -> None:
    both = pool(Limit("requests", 3, "second"), Limit("tokens", 0.3, "second"))
    rows = [row(i / 10, costs={"tokens": 0.1}) for i in range(3)]
    found = told(both, *rows)
    assert {each.limit: (each.over_s, round(each.units, 9)) for each in found.values()} == {
        "requests": (0, 3),
        "tokens": (0, 0.3),
    }
    assert told(both, *rows[:2], row(0.9, costs={"tokens": 0.2}))["tokens/second of acme-1"].over_s == 1


def test_units_that_were_given_back_make_room() -> None:
    limited = pool(Limit("tokens", 100, "minute"))
    rows = [row(0, costs={"tokens": 80}, actual={"tokens": 10}), row(1, costs={"tokens": 80})]
    assert one(limited, *rows).over_s == 0
    assert one(limited, row(0, costs={"tokens": 80}), rows[1]).over_s == 1


def test_debt_is_carried_until_it_is_paid() -> None:
    limited = pool(Limit("tokens", 10, "second"))
    owing = row(0, 0.5, costs={"tokens": 5}, actual={"tokens": 27})
    # At 0.5 s 5 of the 22 find room, the next second pays 10 and the one after that the last 7.
    assert one(limited, owing, row(2, costs={"tokens": 3})).over_s == 0
    found = one(limited, owing, row(2, costs={"tokens": 4}))
    assert (found.over_s, found.most_debt, found.units) == (1, 17, 31)
    assert one(limited, owing, row(1, costs={"tokens": 1})).over_s == 1


def test_debt_of_a_minute_is_paid_when_the_window_has_room() -> None:
    limited = pool(Limit("tokens", 10, "minute"))
    owing = row(0, 1, costs={"tokens": 10}, actual={"tokens": 25})
    # From second 60 on 10 are paid, from second 120 on the last 5.
    assert one(limited, owing, row(61, costs={"tokens": 1})).over_s == 1
    assert one(limited, owing, row(121, costs={"tokens": 5})).over_s == 0
    assert one(limited, owing, row(121, costs={"tokens": 6})).over_s == 1


# ----------------------------------------------------------------------------------------------------- limits change


def test_each_start_is_held_against_the_version_that_charged_it() -> None:
    versions = {v: pool(Limit("n", amount, "second")) for v, amount in ((1, 4), (2, 2), (3, 5))}
    lowered = [row(0), row(0.1), row(0.2), row(0.3)]
    assert one(versions, *lowered).over_s == 0
    assert one(versions, *lowered, row(0.4, version=2)).over_s == 1
    assert one(versions, *lowered, row(0.4, version=3)).over_s == 0
    assert one(versions, *lowered, row(1, version=2), row(1.1, version=2)).over_s == 0


def test_calendars_change_amounts_by_the_clock_on_the_wall() -> None:
    # T0 is 23:13:20 in Berlin: the night begins 2800 seconds later, with the first minute of Wednesday.
    night = Calendar(
        "Europe/Berlin", (Hours("00:00", "06:00", "wed", {"n": 1}), Hours("23:00", "24:00", "tue", {"n": 3}))
    )
    limited = pool(Limit("n", 2, "second"), calendar=night)
    assert one(limited, row(0), row(0.1), row(0.2)).over_s == 0
    assert one(limited, row(2799), row(2799.5), row(2799.9)).over_s == 0
    assert one(limited, row(2800), row(2800.5)).over_s == 1
    assert one(limited, row(2800 + 6 * 3600), row(2800.5 + 6 * 3600)).over_s == 0


def test_hours_over_the_end_of_the_week_hold_on_monday() -> None:
    monday_s = 6400 + 5 * 86_400  # 00:00 of Monday
    weekend = Calendar(hours=(Hours("22:00", "02:00", "sun", {"n": 1}),))
    limited = pool(Limit("n", 2, "second"), calendar=weekend)
    assert one(limited, row(monday_s + 3600), row(monday_s + 3600.5)).over_s == 1
    assert one(limited, row(monday_s + 7200), row(monday_s + 7200.5)).over_s == 0


def test_a_running_task_is_held_under_the_limits_of_a_changed_pool() -> None:
    slots = Limit("slots", 1, "in_flight")
    before = pool(acme_2=Resource(None, (), {"code": {}}), parent=(slots,))
    moved = Pool("sms", types=before.types, resources={**before.resources, "acme-1": Resource(takes={"code": {}})})
    # Once acme-1 has left acme, its running task does not count there, and a task of another child may start.
    versions = {
        1: before,
        2: Pool("sms", types=before.types, resources={**moved.resources, "acme-2": Resource("acme")}),
    }
    found = told(versions, row(0, 100), row(1, 1, resource="acme-2", version=2))
    assert found["slots/in_flight of acme"].over_s == 0


def test_starts_under_a_version_that_nobody_knows_are_told_as_unproven() -> None:
    recount = Recount({1: pool(Limit("n", 1, "second"))})
    for each in (row(0), row(1, version=7), row(2, resource="gone")):
        recount.add(each)
    assert (recount.attempts, recount.unproven) == (3, 2)


# ----------------------------------------------------------------------------------------- against the accounts


SHARED = (Limit("n", 40, "second"), Limit("tokens", 900, "minute"), Limit("slots", 9, "in_flight"))
OWN = (Limit("n", 12, "second"), Limit("n", 200, "hour"), Limit("tokens", 2000, "day"), Limit("slots", 5, "in_flight"))


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(8, 40))])
def test_what_the_accounts_let_start_is_never_over(seed: int) -> None:
    """Tasks crowd in as fast as the accounts let them, with debts, refunds and changes of the pool."""
    random_ = random.Random(seed)
    versions = {1: _random_pool(random_)}
    rows = _crowd(random_, versions, Accounts(versions[1], T0))
    found = told(versions, *rows)
    assert len(rows) > 300
    assert {name: each.over_s for name, each in found.items() if each.over_s} == {}
    assert max(each.peak / each.amount for each in found.values() if each.amount) > 0.99


@pytest.mark.parametrize("seed", range(4))
def test_a_start_too_many_is_found(seed: int) -> None:
    random_ = random.Random(seed)
    versions = {1: _random_pool(random_)}
    rows = _crowd(random_, versions, Accounts(versions[1], T0))
    busiest = max(told(versions, *rows).values(), key=lambda each: each.peak / each.amount)
    more = [
        row(i / 100 + (rows[200].started_us / 1e6 - T0), resource="acme-1", costs={busiest.limit: busiest.amount})
        for i in range(2)
    ]
    assert sum(each.over_s for each in told(versions, *rows, *more).values()) > 0


def _random_pool(random_: random.Random) -> Pool:
    def some(limits: tuple[Limit, ...]) -> tuple[Limit, ...]:
        return tuple(
            _of_some_kind(random_, Limit(each.name, each.amount * random_.choice((0.5, 1, 2)), each.per))
            for each in limits
            if random_.random() < 0.8
        )

    child = Resource("acme", some(OWN), {"code": {}})
    return pool(Limit("n", 9, "second"), *some(OWN[2:]), parent=some(SHARED), acme_2=child, acme_3=child)


def _of_some_kind(random_: random.Random, limit: Limit) -> Limit:
    kind = None if limit.per == "in_flight" else random_.choice((None, "rolling", "calendar", "bucket"))
    burst = limit.amount * random_.choice((0.3, 1.5)) if kind == "bucket" and random_.random() < 0.5 else None
    zone = "Asia/Kolkata" if limit.per == "day" and kind == "calendar" else None
    return msgspec.structs.replace(limit, kind=kind, burst=burst, zone=zone)


def _crowd(random_: random.Random, versions: dict[int, Pool], accounts: Accounts) -> list[Attempt]:
    now, rows, version = float(T0), list[Attempt](), 1
    running: list[tuple[float, Charge, Attempt]] = []
    costs = [{"tokens": float(random_.randint(0, 60)), "n": random_.choice((0.5, 1.0, 2.0))} for _ in range(5)]
    while len(rows) < 1500 and now < T0 + 2000:
        for entry in [entry for entry in running if entry[0] <= now]:
            running.remove(entry)
            ended_at, charge, started = entry
            charge.end(ended_at, started.actual)
        for name in ("acme-1", "acme-2", "acme-3"):
            for _ in range(8):
                cost = random_.choice(costs)
                charge_ = accounts.charge(name, cost, now)
                if charge_ is None:
                    continue
                took_s = random_.choice((0.05, 0.3, 2.0))
                actual = {"tokens": cost["tokens"] * random_.choice((0.3, 3.0))} if random_.random() < 0.4 else None
                fields: dict[str, Any] = {"task": str(len(rows)), "costs": cost, "actual": actual}
                rows.append(row(now - T0, took_s, name, version, **fields))
                running.append((rows[-1].ended_us / 1e6, charge_, rows[-1]))
        if random_.random() < 0.01:
            version += 1
            versions[version] = _random_pool(random_)
            accounts.follow(versions[version], now)
        now += random_.choice((0.0625, 0.125, 0.5))
    return rows
