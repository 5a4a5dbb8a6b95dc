"""Tenants whose tasks cost different units share limits by their weights, in each ten seconds on a virtual clock."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable

import pytest

from emq_scheduling.choice.costing import rates_of
from emq_scheduling.choice.matching import Start
from emq_scheduling.model import Costs, Limit, Pool, Resource, TaskType, Tenant
from support.matching_bench import Bench

Sizes = Callable[[random.Random], float]

WINDOW_S = 10.0
HELD = 48
"""Tasks of each tenant that wait at a time, as on a host."""

A_AND_B = {"a": Tenant(1.0), "b": Tenant(3.0)}
ONE_AND_TEN: dict[str, Sizes] = {"a": lambda _: 1.0, "b": lambda _: 10.0}


def second(amount: float, name: str = "tokens") -> Limit:
    return Limit(name, amount, "second")


def pool_of(resources: dict[str, Resource], tenants: dict[str, Tenant], *kinds: str) -> Pool:
    types = {kind: TaskType(duration_s=0.01) for kind in kinds or ("t",)}
    return Pool("p", resources=resources, types=types, tenants=tenants)


def flat(tenants: dict[str, Tenant], *limits: Limit) -> Pool:
    return pool_of({"r": Resource(limits=limits, takes={"t": {}})}, tenants)


class Backlogs:
    """Tenants that always have tasks waiting, and what these start.

    Args:
        sizes: by tenant, the tokens of its next task.
        kinds: by tenant, the type of its tasks; "t" for those without.
    """

    def __init__(self, pool: Pool, sizes: dict[str, Sizes], kinds: dict[str, str] | None = None) -> None:
        self.bench = Bench(pool, 1020.0)
        self.starts: list[tuple[float, str, Costs]] = []
        self._sizes, self._kinds = sizes, kinds or {}
        self._random = random.Random(1)
        self._held: Counter[str] = Counter()
        self._ends: list[tuple[float, int, Start]] = []
        self._count = itertools.count()

    def run(self, seconds: float) -> None:
        bench = self.bench
        end = bench.now + seconds
        while bench.now < end:
            for tenant, size in self._sizes.items():
                while self._held[tenant] < HELD:
                    costs = {"tokens": size(self._random)}
                    bench.add(self._kinds.get(tenant, "t"), tenant=tenant, costs=costs)
                    self._held[tenant] += 1
            if starts := bench.matching.run(bench.now, 16):
                for start in starts:
                    tenant = start.waiting.task.tenant
                    self.starts.append((bench.now, tenant, start.costs))
                    self._held[tenant] -= 1
                    duration_s = bench.pool.types[start.waiting.task.type].duration_s
                    heapq.heappush(self._ends, (bench.now + duration_s, next(self._count), start))
                continue
            ends_at = self._ends[0][0] if self._ends else math.inf
            bench.now = max(min(bench.matching.next_at(bench.now), ends_at), bench.now + 1e-6)
            while self._ends and self._ends[0][0] <= bench.now:
                bench.end(heapq.heappop(self._ends)[2])

    def shares(self, since: float, rates: dict[str, float]) -> dict[str, float]:
        """Return the part of each tenant in the dominant shares of the ten seconds."""
        found: Counter[str] = Counter()
        for at, tenant, costs in self.starts:
            if since <= at < since + WINDOW_S:
                found[tenant] += max(costs[name] / rate for name, rate in rates.items())  # type: ignore[assignment]
        return {tenant: found[tenant] / found.total() for tenant in self._sizes}

    def check(self, rates: dict[str, float], points: float = 3.0) -> None:
        """Run, and check the shares of each ten seconds and the use of the limits."""
        began = self.bench.now
        self.run(23.0)
        tenants = self.bench.pool.tenants
        total = sum(tenants[name].weight for name in self._sizes)
        for step in range(20):
            for name, part in self.shares(began + 3 + step / 2, rates).items():
                assert abs(part - tenants[name].weight / total) * 100 <= points, (name, part, step)
        used = {name: sum(costs[name] for _, _, costs in self.starts) / 23.0 / rate for name, rate in rates.items()}
        assert 0.98 <= max(used.values()) <= 1.0 + 1e-9, used


def test_small_tasks_get_no_more_than_their_share_beside_large_ones() -> None:
    Backlogs(flat(A_AND_B, second(300)), ONE_AND_TEN).check({"tokens": 300})


@pytest.mark.parametrize("is_up", [True, False])
def test_weights_from_one_to_ten_with_costs_from_one_to_ten(is_up: bool) -> None:
    numbers = range(1, 11)
    tenants = {f"t{number}": Tenant(float(number if is_up else 11 - number)) for number in numbers}
    sizes: dict[str, Sizes] = {f"t{number}": lambda _, size=number: float(size) for number in numbers}  # type: ignore[misc]
    Backlogs(flat(tenants, second(300)), sizes).check({"tokens": 300})


def test_costs_from_one_to_three_thousand() -> None:
    tenants = {"a": Tenant(1.0), "b": Tenant(3.0), "c": Tenant(2.0)}
    sizes: dict[str, Sizes] = {
        "a": lambda chance: float(chance.randint(1, 100)),
        "b": lambda chance: float(chance.randint(1, 3_000)),
        "c": lambda _: 3_000.0,
    }
    Backlogs(flat(tenants, second(30_000)), sizes).check({"tokens": 30_000})


def test_dominant_shares_of_several_limits() -> None:
    tenants = {"a": Tenant(1.0), "b": Tenant(3.0), "c": Tenant(2.0)}
    sizes: dict[str, Sizes] = {"a": lambda _: 3.0, "b": lambda _: 100.0, "c": lambda _: 20.0}
    limits = second(3_000), second(100, "requests")
    Backlogs(flat(tenants, *limits), sizes).check({"tokens": 3_000, "requests": 100})


@pytest.mark.parametrize("scarce", ["parent", "children"])
def test_shares_under_nested_limits(scarce: str) -> None:
    amounts = [40.0 + 30 * number for number in range(4)] if scarce == "parent" else [40.0] * 4
    resources = {"top": Resource(limits=(second(300),))}
    resources |= {f"r{i}": Resource("top", (second(amount),), {"t": {}}) for i, amount in enumerate(amounts)}
    Backlogs(pool_of(resources, A_AND_B), ONE_AND_TEN).check({"tokens": min(300.0, sum(amounts))})


@pytest.mark.parametrize("per", ["second", "minute"])
def test_shares_of_a_parent_between_tenants_on_different_resources(per: str) -> None:
    limit = second(300) if per == "second" else Limit("tokens", 18_000, "minute")
    resources = {
        "top": Resource(limits=(limit,)),
        "r1": Resource("top", takes={"x": {}}),
        "r2": Resource("top", takes={"y": {}}),
    }
    backlogs = Backlogs(pool_of(resources, A_AND_B, "x", "y"), ONE_AND_TEN, {"a": "x", "b": "y"})
    if per == "second":
        backlogs.check({"tokens": 300})
        return
    backlogs.run(130.0)
    for since in (1020.0, 1081.0, 1140.0):  # a minute's amount is used as soon as it is free
        assert backlogs.shares(since, {"tokens": 300})["a"] == pytest.approx(0.25, abs=0.03), since


def test_a_large_task_gets_units_in_flight_of_a_parent_beside_small_ones_elsewhere() -> None:
    resources = {
        "top": Resource(limits=(Limit("tokens", 30, "in_flight"),)),
        "r1": Resource("top", takes={"x": {}}),
        "r2": Resource("top", takes={"y": {}}),
    }
    sizes: dict[str, Sizes] = {"a": lambda _: 1.0, "b": lambda _: 20.0}
    backlogs = Backlogs(pool_of(resources, A_AND_B, "x", "y"), sizes, {"a": "x", "b": "y"})
    backlogs.run(12.0)
    part = backlogs.shares(1021.0, {"tokens": 30})["b"]
    assert part >= 0.6, "one of them fits at a time, which is two thirds"


def test_a_tenant_with_more_elsewhere_keeps_nobody_from_a_scarce_resource() -> None:
    """The turns of those who share the scarce resource stay far behind, and their weights count between them."""
    resources = {
        "scarce": Resource(limits=(second(300),), takes={"x": {}, "y": {}}),
        "ample": Resource(limits=(second(3_000),), takes={"y": {}}),
    }
    tenants = {"a": Tenant(4.0), "b": Tenant(1.0), "rich": Tenant(1.0), "late": Tenant(5.0)}
    kinds = {"a": "x", "b": "x", "rich": "y", "late": "x"}
    sizes: dict[str, Sizes] = {"a": lambda _: 20.0, "b": lambda _: 10.0, "rich": lambda _: 50.0}
    backlogs = Backlogs(pool_of(resources, tenants, "x", "y"), sizes, kinds)
    backlogs.run(30.0)
    shares = backlogs.shares(1035.0, {"tokens": 300})
    assert shares["a"] / (shares["a"] + shares["b"]) == pytest.approx(0.8, abs=0.03)
    sizes["late"] = lambda _: 10.0
    backlogs.run(12.0)
    shares = backlogs.shares(1051.0, {"tokens": 300})
    few = shares["a"] + shares["b"] + shares["late"]
    assert shares["late"] / few == pytest.approx(0.5, abs=0.03), "one that comes late does not wait for them"
    assert shares["a"] / few == pytest.approx(0.4, abs=0.03)


def test_tasks_without_room_for_long_do_not_keep_others_waiting_later() -> None:
    resources = {
        "top": Resource(limits=(second(25),)),
        "r1": Resource("top", takes={"x": {}}),
        "r2": Resource("top", takes={"y": {}}),
    }
    tenants = {"a": Tenant(1.0), "b": Tenant(1.0)}
    sizes: dict[str, Sizes] = {"a": lambda _: 1.0, "b": lambda _: 1.0}
    backlogs = Backlogs(pool_of(resources, tenants, "x", "y"), sizes, {"a": "x", "b": "y"})
    backlogs.bench.matching.lineups.close("r2", 1120.0)
    backlogs.run(112.0)
    assert backlogs.shares(1100.0, {"tokens": 25}) == {"a": 1.0, "b": 0.0}
    assert backlogs.shares(1121.0, {"tokens": 25})["a"] >= 0.35, "b was closed out for 100 s, and makes up for 2 s"


def test_what_a_pool_allows_is_added_up_below_parents_and_bounded_by_them() -> None:
    resources = {
        "top": Resource(limits=(second(300), Limit("tokens", 12_000, "minute"), second(9, "requests"))),
        "r1": Resource("top", (second(50), Limit("slots", 4, "in_flight")), {"t": {}}),
        "r2": Resource("top", (second(60), second(5, "requests")), {"t": {}}),
        "alone": Resource(None, (second(7),), {"t": {}}),
        "off": Resource(None, (second(0, "mails"),), {"t": {}}),
    }
    rates = rates_of(pool_of(resources, {}))
    assert rates == {("tokens", False): 117.0, ("requests", False): 9.0, ("slots", True): 4.0}
