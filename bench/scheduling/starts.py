"""The CPU that the choice of a task costs, and that a change of the pool costs, by the number of resources.

Every task goes through the real matching and the real accounts on a virtual clock, as in `bench.scheduling.replay`. All
types and tenants have a backlog all the time. Counted is all that a start needs: to take the task into the window, to
choose it, to charge it, and to end it.
"""

from __future__ import annotations

import gc
import heapq
import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from bench.support.stage import Stage
from emq_scheduling.choice.keeping import Keeping
from emq_scheduling.choice.matching import Matching
from emq_scheduling.choice.waiting import Waiting
from emq_scheduling.limits.accounts import Accounts, Charge
from emq_scheduling.model import Costs, KeyLimit, Limit, Period, Pool, Resource, TaskType, Tenant
from emq_scheduling.tasks import Task

SIZES = (100, 1_000, 10_000)
PLACES = {1: ("leaf",), 2: ("leaf", "root"), 4: ("leaf", "middle", "root")}
"""Where the scarce limit may be, by the number of levels."""

TENANTS = 5
STARTS = 1_000.0
"""Starts a second under the scarce limit, at least one of each resource that has it."""

DURATION_S = 0.1
AT_ONCE = 32
"""Most starts of one call of the matching, as on a host."""

ROUNDS = 3
MOST_S = 4.0
"""Seconds of CPU after which a case gets no more rounds."""

BEGIN = 1e9

KEYS = 10_000
"""Tenants of the cases with limits by key."""

BY_KEY: dict[str, dict[str, KeyLimit]] = {
    "none": {},
    "room": {"each": KeyLimit("tenant", 5, "in_flight")},
    "room_by_the_minute": {"each": KeyLimit("tenant", 5, "in_flight"), "rate": KeyLimit("tenant", 600, "minute")},
    "full": {"each": KeyLimit("tenant", 1, "in_flight")},
}
"""Limits by key: none, those with room for what the resource allows, and one that is itself the scarce limit."""


class Case(NamedTuple):
    """A pool.

    Attributes:
        per: the period of the scarce limit.
        types: "one" for all resources, or "each": every resource takes a type of its own.
        tenants: of each type.
    """

    resources: int
    levels: int
    scarce: str
    per: Period
    types: str
    tenants: int

    @property
    def name(self) -> str:
        where = f"{self.resources} in {self.levels}, {self.scarce} scarce per {self.per}"
        return f"{where}, {'a type each' if self.types == 'each' else 'one type'}, {self.tenants} tenants"


def cases(sizes: tuple[int, ...] = SIZES) -> Iterator[Case]:
    """Yield all cases."""
    for size, levels in itertools.product(sizes, PLACES):
        for scarce, per in itertools.product(PLACES[levels], ("second", "in_flight")):
            for types, tenants in (("one", 1), ("each", 1), ("each", TENANTS)):
                yield Case(size, levels, scarce, per, types, tenants)  # type: ignore[arg-type]


def pool_of(case: Case) -> Pool:
    """Return the pool of a case: each parent has at least ten resources below it."""
    counts: list[int] = {1: [], 2: [1], 4: [1, max(1, case.resources // 100), case.resources // 10]}[case.levels]
    where = {"root": 0, "middle": 1, "leaf": case.levels - 1}[case.scarce]
    resources: dict[str, Resource] = {}
    for level, count in enumerate([*counts, case.resources]):
        units = STARTS * (DURATION_S if case.per == "in_flight" else 1.0)
        amount = float(max(1, round(units / count))) if level == where else 10 * STARTS
        per: Period = case.per if level == where else "second"
        for number in range(count):
            parent = f"l{level - 1}-{number * counts[level - 1] // count}" if level else None
            kind: dict[str, Costs] = {} if level < len(counts) else {f"t{number}" if case.types == "each" else "t": {}}
            resources[f"l{level}-{number}"] = Resource(parent, (Limit("requests", amount, per),), kind, adapts=False)
    kinds = {kind: TaskType(duration_s=DURATION_S) for resource in resources.values() for kind in resource.takes}
    return Pool("bench", resources=resources, types=kinds, tenants={f"c{n}": Tenant(1.0 + n) for n in range(TENANTS)})


def pool_of_keys(name: str) -> Pool:
    """Return a pool with limits by key."""
    amount = STARTS * DURATION_S if name != "full" else 1e6
    taker = Resource(limits=(Limit("requests", amount, "in_flight"),), takes={"t": {}}, adapts=False)
    return Pool("bench", resources={"r": taker}, types={"t": TaskType(duration_s=DURATION_S)}, limits=BY_KEY[name])


class Load:
    """A pool under a backlog of all its types and tenants, on a virtual clock."""

    def __init__(self, pool: Pool, tenants: int) -> None:
        self.pool = pool
        self.now = BEGIN
        self.accounts = Accounts(self.pool, self.now)
        self.keeping = Keeping(self.pool, self.accounts, self.now)
        self.matching = Matching(self.pool, self.keeping)
        self._ends: list[tuple[float, int, Charge]] = []
        self._ids = itertools.count()
        self._random = random.Random(1)
        lines = len(self.pool.types) * tenants
        for _ in range(max(2, min(500, 1_000 // lines))):
            for kind in self.pool.types:
                for number in range(tenants):
                    self._add(kind, f"c{number}")

    def run(self, seconds: float) -> int:
        """Go on for so long; return the number of starts."""
        end, count = self.now + seconds, 0
        while self.now < end:
            starts = self.matching.run(self.now, AT_ONCE)
            for start in starts:
                count += 1
                task = start.waiting.task
                self._add(task.type, task.tenant)
                ends_at = self.now + DURATION_S * self._random.uniform(0.5, 1.5)
                heapq.heappush(self._ends, (ends_at, next(self._ids), start.charge))
            if len(starts) < AT_ONCE:
                self._go_on()
        return count

    def follow(self, pool: Pool) -> None:
        """Take over a changed pool."""
        self.accounts.follow(pool, self.now)
        self.keeping.follow(pool, self.now)
        self.matching.follow(pool)

    def _add(self, kind: str, tenant: str) -> None:
        number = next(self._ids)
        task = Task(f"{number}", "bench", kind, tenant, None, b"", 1, round(self.now * 1e6) + number)
        self.matching.add(Waiting(task, 0), self.now)

    def _go_on(self) -> None:
        at = min(self.matching.next_at(self.now), self._ends[0][0] if self._ends else math.inf)
        self.now = max(self.now + 1e-6, at)
        while self._ends and self._ends[0][0] <= self.now:
            _, _, charge = heapq.heappop(self._ends)
            charge.end(self.now)
            self.matching.freed(charge, self.now, is_refund=False)


def start_us(load: Load) -> float:
    """Return the microseconds of CPU for a start: the median of several seconds on the virtual clock."""
    load.run(1.0)
    gc.collect()
    found: list[float] = []
    began = time.process_time()
    while len(found) < ROUNDS and time.process_time() - began < MOST_S:
        before = time.process_time()
        count = load.run(1.0)
        found.append(1e6 * (time.process_time() - before) / max(1, count))
    return statistics.median(found)


def changes(pool: Pool) -> dict[str, Callable[[Pool], Pool]]:
    """Return changes by name: each changes one thing of a pool, now one way and now the other."""
    root, leaf = (name for name in (next(iter(pool.resources)), next(reversed(pool.resources))))

    def with_limit(of: Pool, name: str) -> Pool:
        limit = of.resources[name].limits[0]
        limits = (msgspec.structs.replace(limit, amount=limit.amount * 1.5),)
        resource = msgspec.structs.replace(of.resources[name], limits=limits)
        return msgspec.structs.replace(of, resources={**of.resources, name: resource})

    def toggled(of: Pool) -> Pool:
        more = dict(of.resources)
        if more.pop("more", None) is None:
            more["more"] = of.resources[leaf]
        return msgspec.structs.replace(of, resources=more)

    def weighed(of: Pool) -> Pool:
        weight = of.tenants["c0"].weight
        return msgspec.structs.replace(of, tenants={**of.tenants, "c0": Tenant(weight * 1.5)})

    return {
        "root_limit": lambda of: with_limit(of, root),
        "leaf_limit": lambda of: with_limit(of, leaf),
        "weight": weighed,
        "resource": toggled,
    }


def change_ms(case: Case) -> dict[str, float]:
    """Return the milliseconds of CPU for each kind of a change, with the starts that follow at once.

    Each version of the pool is a new object with nothing of the one before, as if read from the database.
    """
    load = Load(pool_of(case), case.tenants)
    load.run(1.5)
    found = {}
    for name, change in changes(load.pool).items():
        took = []
        for _ in range(ROUNDS):
            load.run(0.01)
            pool = msgspec.json.decode(msgspec.json.encode(change(load.pool)), type=Pool)
            before = time.process_time()
            load.follow(pool)
            load.matching.run(load.now, AT_ONCE)
            took.append(1e3 * (time.process_time() - before))
            load.pool = pool
        found[name] = statistics.median(took)
    return found


async def run(stage: Stage, *, sizes: tuple[int, ...] = SIZES, keys: int = KEYS) -> dict[str, Any]:
    told: dict[Case, float] = {}
    for case in cases(sizes):
        told[case] = start_us(Load(pool_of(case), case.tenants))
        stage.say(f"{case.name}: {told[case]:.0f} us")
    by_key = {}
    for name in BY_KEY:
        by_key[name] = start_us(Load(pool_of_keys(name), keys))
        stage.say(f"limits by key, {keys} tenants, {name}: {by_key[name]:.0f} us")
    largest = Case(max(sizes), 4, "root", "second", "each", TENANTS)
    changed = change_ms(largest)
    worst = {size: max(us for case, us in told.items() if case.resources == size) for size in sizes}
    return {
        **{f"start_us_{size}": us for size, us in worst.items()},
        **{f"start_us_by_key_{name}": us for name, us in by_key.items()},
        "change_ms": max(changed.values()),
        **{f"change_{name}_ms": ms for name, ms in changed.items()},
        "start_us": [{**case._asdict(), "us": us} for case, us in told.items()],
    }
