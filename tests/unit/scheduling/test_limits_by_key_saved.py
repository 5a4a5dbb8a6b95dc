"""What keys have used survives a crash of the owner, costs the database only what is awake, and is proved again."""

from __future__ import annotations

import random
from collections import defaultdict

import msgspec
import pytest

from emq_scheduling.limits.accounts import Accounts, Charge
from emq_scheduling.limits.usage import SavedUse, Usage
from emq_scheduling.model import KeyLimit, Kind, Limit, Period, Pool, Resource, TaskType
from emq_scheduling.records.proof import Recount
from emq_scheduling.records.records import Attempt
from emq_scheduling.tasks import Task

NOW = 1_700_000_000.0


def pool_of(limits: dict[str, KeyLimit]) -> Pool:
    return Pool("p", resources={"r": Resource(takes={"t": {}})}, types={"t": TaskType()}, limits=limits)


def task_of(tenant: str, **keys: str) -> Task:
    return Task("id", "p", "t", tenant, None, b"", 1, 0, keys=keys or None)


class Owner:
    """An owner of a pool, and the database that it saves to."""

    def __init__(self, of: Pool, rows: dict[str, SavedUse], now: float) -> None:
        self.rows = rows
        self.accounts = Accounts(of, now, saves=True)
        self.accounts.begin(now)
        self.usage = Usage(self.accounts)
        self.usage.restore(dict(rows), now)
        self.save(now)

    def save(self, now: float, *, is_written: bool = True, is_known: bool = True) -> int:
        """Save; return how many rows were written or deleted."""
        plan, gone = self.usage.plan(now), self.usage.gone(now)
        if is_written:
            self.rows |= {n: msgspec.json.decode(msgspec.json.encode(each), type=SavedUse) for n, each in plan.items()}
            for name in gone:
                self.rows.pop(name, None)
        if is_known and is_written:
            self.usage.saved(plan)
            self.usage.deleted(gone)
        else:
            self.usage.doubtful(plan)
        return len(plan) + len(gone)

    def start(self, tenant: str, now: float, costs: dict[str, float] | None = None) -> Charge | None:
        task = task_of(tenant)
        return self.accounts.charge("r", costs or {}, now, now + 1, task, self.accounts.keyed.ids(task))


def test_the_first_task_of_a_key_waits_for_a_save_and_later_ones_do_not() -> None:
    owner = Owner(pool_of({"rate": KeyLimit("tenant", 60, "minute")}), {}, NOW)
    assert owner.start("a", NOW + 1) is None
    assert owner.usage.is_short()
    assert owner.save(NOW + 1) == 1
    assert not owner.usage.is_short()
    assert owner.start("a", NOW + 1) is not None
    assert owner.start("b", NOW + 1) is None


def test_what_a_crashed_owner_used_counts_for_each_key() -> None:
    of, rows = pool_of({"rate": KeyLimit("tenant", 10, "hour", amounts={"b": 30})}), dict[str, SavedUse]()
    first = Owner(of, rows, NOW)
    started = defaultdict[str, int](int)
    for step in range(100):
        for tenant in ("a", "b"):
            started[tenant] += first.start(tenant, NOW + 1 + step / 10) is not None
        if step % 5 == 0:
            first.save(NOW + 1 + step / 10)
    assert started == {"a": 10, "b": 30}
    second = Owner(of, rows, NOW + 12)
    second.save(NOW + 13)
    for step in range(20):
        assert second.start("a", NOW + 13 + step) is None
        assert second.start("b", NOW + 13 + step) is None
        second.save(NOW + 13 + step)
    assert second.start("c", NOW + 40) is None
    second.save(NOW + 40)
    assert second.start("c", NOW + 40) is not None


def test_an_owner_that_ends_orderly_leaves_the_whole_reserve_to_the_next() -> None:
    of, rows = pool_of({"rate": KeyLimit("tenant", 10, "hour")}), dict[str, SavedUse]()
    first = Owner(of, rows, NOW)
    first.start("a", NOW + 1)
    first.save(NOW + 1)
    assert first.start("a", NOW + 1) is not None
    rows |= first.usage.final(NOW + 2)
    second = Owner(of, rows, NOW + 3)
    assert second.accounts.keyed.open(("rate", ("a",)), NOW + 3).meter.used(NOW + 3) == 1


def test_a_bucket_and_a_rolling_second_are_taken_for_used_up_by_a_new_owner() -> None:
    limits = {
        "bucket": KeyLimit("tenant", 1, "second", kind="bucket", burst=20),
        "rolling": KeyLimit("tenant", 30, "second", kind="rolling", units="bucket"),
    }
    owner = Owner(pool_of(limits), {}, NOW + 0.25)
    count = [sum(owner.start("a", NOW + at) is not None for _ in range(50)) for at in (1.0, 1.3, 5.3)]
    assert count == [0, 1, 4], "the former owner may have used the burst in its last moment"


def test_rows_of_keys_that_count_no_more_are_deleted_also_those_of_a_former_owner() -> None:
    of, rows = pool_of({"rate": KeyLimit("tenant", 5, "minute"), "old": KeyLimit("tenant", 5, "hour")}), {}
    first = Owner(of, rows, NOW)
    for number in range(3_000):
        first.start(f"t{number}", NOW + 1)
    while first.usage.is_short():
        first.save(NOW + 1)
    assert len(rows) == 3_000, "the other limit has not been asked, since this one had no room"
    second = Owner(pool_of({"rate": of.limits["rate"]}), rows, NOW + 2)
    for later in (70, 140, 141, 142, 143):
        second.accounts.keyed.sweep(NOW + later)
        while second.save(NOW + later):
            pass
    assert rows == {}
    assert second.accounts.keyed.counts() == {"rate": 0}
    assert not second.accounts.keyed.gone


def test_a_save_costs_what_was_used_since_and_not_what_exists() -> None:
    owner = Owner(pool_of({"rate": KeyLimit("tenant", 600, "minute")}), {}, NOW)
    for number in range(500):
        owner.start(f"t{number}", NOW + 1)
    while owner.usage.is_short():
        owner.save(NOW + 1)
    for number in range(500):
        assert owner.start(f"t{number}", NOW + 1.5) is not None
    owner.save(NOW + 2)
    for later in range(3, 30):
        owner.save(NOW + later)
    assert not owner.accounts.keyed.touched
    owner.start("t7", NOW + 31)
    assert len(owner.accounts.keyed.touched) == 1


def test_the_row_of_a_key_is_deleted_also_if_its_limit_counts_by_another_period_then() -> None:
    owner = Owner(pool_of({"rate": KeyLimit("tenant", 60, "minute")}), {}, NOW)
    owner.start("a", NOW + 1)
    owner.save(NOW + 1)
    assert len(owner.rows) == 1
    owner.accounts.follow(pool_of({"rate": KeyLimit("tenant", 60, "second")}), NOW + 2)
    assert owner.start("a", NOW + 2) is not None
    owner.save(NOW + 3)
    for charge in list(owner.accounts._open):
        charge.end(NOW + 9)
    for later in range(10, 14):
        owner.accounts.keyed.sweep(NOW + later)
        owner.save(NOW + later)
    assert owner.rows == {}


def test_use_that_is_reported_after_the_limit_went_stops_no_save() -> None:
    of = pool_of({"rate": KeyLimit("tenant", 60, "minute"), "other": KeyLimit("tenant", 60, "minute")})
    owner = Owner(of, {}, NOW)
    for step in range(3):
        owner.start("a", NOW + 1)
        owner.save(NOW + 1 + step)
    charge = owner.start("a", NOW + 4)
    assert charge is not None
    owner.accounts.follow(msgspec.structs.replace(of, limits={"other": of.limits["other"]}), NOW + 5)
    charge.end(NOW + 6, {"rate": 3.0, "other": 2.0})
    assert list(owner.accounts.keyed.touched) == ["\x1fother\x1fa"]
    for later in range(7, 30):
        owner.save(NOW + later)
    assert not owner.accounts.keyed.touched


@pytest.mark.parametrize("seed", range(30))
def test_no_key_exceeds_its_limit_whenever_its_owners_crash(seed: int) -> None:
    dice = random.Random(seed)
    kinds: list[tuple[Period, Kind | None, float]] = [("minute", None, 60), ("hour", "bucket", 0), ("hour", None, 3600)]
    per, kind, period_s = dice.choice(kinds)
    amount = float(dice.randint(6, 40))
    of, rows, now = pool_of({"rate": KeyLimit("tenant", amount, per, "x", kind)}), dict[str, SavedUse](), NOW
    owner = Owner(of, rows, now)
    starts: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for _ in range(1_500):
        now += dice.choice([0.0, 0.05, 0.4, 3.0])
        what = dice.random()
        if what < 0.6:
            tenant, units = dice.choice("abc"), float(dice.randint(1, 2))
            charge = owner.start(tenant, now, {"x": units})
            if charge is not None:
                starts[tenant].append((now, units))
                charge.end(now)
        elif what < 0.95:
            owner.save(now, is_written=dice.random() < 0.9, is_known=dice.random() < 0.8)
        elif what < 0.97:
            owner.accounts.keyed.sweep(now)
        elif what < 0.98:
            now += 0.5
            owner = Owner(of, rows, now)
    assert sum(map(len, starts.values())) > 4
    for times in starts.values():
        if period_s:
            for at, _ in times:
                assert sum(units for when, units in times if at - period_s < when <= at) <= amount + 1e-6
        else:
            left, before = amount, times[0][0]
            for at, units in times:
                left = min(amount, left + (at - before) * amount / 3600) - units
                before = at
                assert left >= -1e-6


# --------------------------------------------------------------------------------------------------------------- proof


def row(at: float, took_s: float, tenant: str, version: int = 1, **fields: object) -> Attempt:
    started_us = int(at * 1e6)
    given: dict[str, object] = {
        "task": f"{at}{tenant}",
        "type": "t",
        "tenant": tenant,
        "resource": "r",
        "key": "",
        "submitted_us": 0,
        "deadline_us": 0,
    }
    given |= {"started_us": started_us, "ended_us": started_us + int(took_s * 1e6), "outcome": "done", "attempt": 1}
    given |= {"version": version, "costs": {}, "actual": None, "error": "", "result": b"", "host": "h"}
    return Attempt(**{**given, **fields})  # type: ignore[arg-type]


def test_the_proof_finds_the_key_that_exceeded_its_limit() -> None:
    limits = {"rate": KeyLimit(("tenant", "model"), 3, "minute", amounts={"b,m": 5})}
    recount = Recount({1: pool_of(limits)})
    for number in range(5):
        for tenant in ("a", "b"):
            recount.add(row(NOW + number, 0.1, tenant, keys={"model": "m" if tenant == "b" else f"m{number % 2}"}))
    [told] = recount.result()
    assert (told.resource, told.starts, told.over_s, told.peak, told.key) == ("rate by tenant, model", 10, 0, 3, "a,m0")
    recount.add(row(NOW + 6, 0.1, "b", keys={"model": "m"}))
    [told] = recount.result()
    assert (told.over_s, told.peak, told.amount, told.key) == (1, 6, 5, "b,m")


def test_the_proof_counts_what_runs_under_a_limit_in_flight_that_came_later() -> None:
    limits = {"each": KeyLimit("tenant", 2, "in_flight")}
    rows = [row(NOW + number / 10, 30, "a") for number in range(3)] + [row(NOW + 1, 1, "b", 2)]
    over = row(NOW + 2, 1, "a", 2)
    for more, told in ([row(NOW + 3, 1, "a", 3)], (0, "b")), ([over, row(NOW + 3, 1, "a", 3)], (1, "a")):
        recount = Recount({1: pool_of({}), 2: pool_of(limits), 3: pool_of({})})
        for each in rows + more:
            recount.add(each)
        assert [(found.over_s, found.key) for found in recount.result()] == [told]


@pytest.mark.parametrize("seed", range(20))
def test_the_proof_does_not_accuse_what_the_accounts_let_start(seed: int) -> None:
    """Random limits by key that change, with debts and refunds; and two more tasks are found."""
    dice = random.Random(seed)

    def some() -> Pool:
        limits = {}
        for name in "xyz":
            per: Period = dice.choice(["in_flight", "second", "minute", "hour"])
            kind: Kind | None = None if per == "in_flight" else dice.choice([None, "rolling", "calendar", "bucket"])
            burst = 30.0 if kind == "bucket" and dice.random() < 0.5 else None
            if dice.random() < 0.8:
                limits[name] = KeyLimit("tenant", dice.choice([20, 60]), per, "u", kind, burst, amounts={"a": 40})
        return Pool("p", resources={"r": Resource(limits=(Limit("u", 90, "second"),))}, types=TYPES, limits=limits)

    versions, now, rows = {1: some()}, NOW, list[Attempt]()
    accounts = Accounts(versions[1], now)
    running: list[tuple[float, Charge, Attempt]] = []
    while len(rows) < 800 and now < NOW + 900:
        for entry in [entry for entry in running if entry[0] <= now]:
            running.remove(entry)
            entry[1].end(entry[0], entry[2].actual)
        for tenant in "abc":
            costs = {"u": dice.choice([1.0, 5.0, 12.0])}
            task = task_of(tenant)
            charge = accounts.charge("r", costs, now, now + 1, task, accounts.keyed.ids(task))
            if charge is not None:
                actual = {"u": costs["u"] * dice.choice([0.3, 3.0])} if dice.random() < 0.4 else None
                rows.append(row(now, dice.choice([0.05, 0.3, 2.0]), tenant, max(versions), costs=costs, actual=actual))
                running.append((rows[-1].ended_us / 1e6, charge, rows[-1]))
        if dice.random() < 0.02:
            versions[max(versions) + 1] = some()
            accounts.follow(versions[max(versions)], now)
        if dice.random() < 0.1:
            accounts.keyed.sweep(now)
        now += dice.choice([0.0625, 0.125, 0.5])
    recount = Recount(versions)
    for each in rows:
        recount.add(each)
    recount._prune()
    assert [(each, each.over_s) for each in recount.result() if each.over_s] == []


TYPES = {"t": TaskType()}
