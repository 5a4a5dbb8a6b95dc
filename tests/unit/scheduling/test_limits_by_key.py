"""Limits by tenant and by key: each key has its own room, and one without room stands in nobody's way."""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections import Counter, defaultdict

import msgspec
import pytest

from emq.runtime import errors
from emq_scheduling.choice import shares
from emq_scheduling.choice.bays import SPARE
from emq_scheduling.choice.matching import Start
from emq_scheduling.limits import keyed
from emq_scheduling.model import KeyLimit, Kind, Limit, Period, Pool, Resource, TaskType
from emq_scheduling.pools import rules
from support.matching_bench import Bench

AMPLE = (Limit("ample", 1e6, "in_flight"),)


def bench_of(limits: dict[str, KeyLimit], *, calls: float = 1e6, **types: TaskType) -> Bench:
    kinds = types or {"t": TaskType()}
    taker = Resource(limits=(Limit("ample", calls, "in_flight"),), takes={kind: {} for kind in kinds})
    pool = Pool("p", resources={"r": taker}, types=kinds, limits=limits)
    rules.check(pool)
    return Bench(pool)


def follow(bench: Bench, pool: Pool) -> None:
    bench.accounts.follow(pool, bench.now)
    bench.keeping.follow(pool, bench.now)
    bench.matching.follow(pool)
    bench.pool = pool


def tenants_of(starts: list[Start]) -> Counter[str]:
    return Counter(start.waiting.task.tenant for start in starts)


def test_each_tenant_has_its_own_room_and_named_ones_have_more() -> None:
    bench = bench_of({"each": KeyLimit("tenant", 2, "in_flight", amounts={"large": 5, "none": 0})})
    for tenant in ("a", "b", "large", "none", ""):
        bench.add("t", 10, tenant=tenant)
    running = bench.run()
    assert tenants_of(running) == {"a": 2, "b": 2, "large": 5, "": 2}
    for start in running:
        bench.end(start)
    assert tenants_of(bench.run()) == {"a": 2, "b": 2, "large": 5, "": 2}


def test_a_limit_by_several_names_counts_each_pair_and_only_its_types() -> None:
    limits = {"rate": KeyLimit(("account", "model"), 3, "minute", types=("t",), amounts={"a7,large": 1})}
    bench = bench_of(limits, t=TaskType(), free=TaskType())
    for account in ("a7", "a8"):
        for model in ("large", "small"):
            bench.add("t", 5, keys={"account": account, "model": model})
    bench.add("free", 7)
    started = Counter(str(start.waiting.task.keys) for start in bench.run())
    assert sorted(started.values()) == [1, 3, 3, 3, 7]


def test_a_key_without_room_waits_aside_and_costs_the_others_no_look() -> None:
    bench = bench_of({"each": KeyLimit("tenant", 1, "in_flight")}, calls=2)
    bench.add("t", 500, tenant="flood")
    [running] = bench.run()
    looks = []
    level = bench.matching.window.level(1)
    assert level is not None
    before = level.next_for
    level.next_for = lambda *of: looks.append(of) or before(*of)  # type: ignore[method-assign, func-returns-value]
    bench.add("t", 1, tenant="other")
    assert tenants_of(bench.run()) == {"other": 1}
    assert len(looks) < 10, "none of the 499 tasks is looked at again"
    bench.end(running)
    assert tenants_of(bench.run()) == {"flood": 1}


def test_the_urgent_of_a_key_go_first_when_it_gets_room() -> None:
    bench = bench_of({"each": KeyLimit("tenant", 1, "in_flight")}, batch=TaskType(2), chat=TaskType(0))
    bench.add("batch", 20, tenant="a")
    [running] = bench.run()
    bench.add("chat", 2, tenant="a")
    assert not bench.run()
    order = []
    for _ in range(4):
        bench.end(running)
        [running] = bench.run()
        order.append(running.waiting.task.type)
    assert order == ["chat", "chat", "batch", "batch"]


def test_small_tasks_of_a_key_do_not_starve_its_large_one() -> None:
    bench = bench_of({"tokens": KeyLimit("tenant", 10, "in_flight")}, t=TaskType(costs={"tokens": 1}))
    bench.add("t", 10, tenant="a")
    running = bench.run()
    bench.add("t", 1, tenant="a", costs={"tokens": 8.0})
    bench.add("t", 50, tenant="a")
    bench.add("t", 50, tenant="a", costs={"tokens": 0.5})
    ended = 0
    while not any(start.costs["tokens"] == 8.0 for start in running):
        bench.end(running.pop(0))
        ended += 1
        running += bench.run()
        assert ended <= 8, "it goes as soon as the tasks before it have ended"


def test_a_task_that_has_room_and_no_resource_does_not_hold_up_other_types_of_its_key() -> None:
    slow, fast = Resource(limits=(Limit("slow", 1, "in_flight"),), takes={"s": {}}), Resource(takes={"f": {}})
    types = {"s": TaskType(), "f": TaskType()}
    limits = {"each": KeyLimit("tenant", 2, "in_flight")}
    bench = Bench(Pool("p", resources={"slow": slow, "fast": fast}, types=types, limits=limits))
    bench.add("s", 5, tenant="other")
    bench.add("s", 5, tenant="a")
    bench.add("f", 5, tenant="a")
    running = [start for start in bench.run() if start.waiting.task.tenant == "a"]
    for _ in range(3):
        assert "f" in {start.waiting.task.type for start in running}
        for start in running:
            bench.end(start)
        running = [start for start in bench.run() if start.waiting.task.tenant == "a"]
    assert tenants_of(running) == {"a": 1} or len(running) <= 2


def test_the_batch_of_a_key_leaves_a_minute_to_its_chats() -> None:
    limits = {"rate": KeyLimit("tenant", 600, "minute")}
    bench = bench_of(limits, batch=TaskType(2), chat=TaskType(0))
    bench.add("batch", 700, tenant="a")
    waits = []
    for second in range(1, 50):
        bench.until(1000.0 + second)
        bench.add("chat", 1, tenant="a")
        found = bench.until(1000.0 + second + 0.5)
        waits += [at - 1000.0 - second for at, start in found if start.waiting.task.type == "chat"]
    assert len(waits) == 49
    assert max(waits) < 0.1


def test_accounts_are_forgotten_once_nothing_of_them_counts() -> None:
    limits = {"each": KeyLimit("tenant", 5, "in_flight"), "rate": KeyLimit("tenant", 5, "minute")}
    bench = bench_of(limits)
    accounts = bench.accounts.keyed
    for number in range(2_000):
        bench.add("t", 1, tenant=f"t{number}")
    running = bench.run()
    assert accounts.counts() == {"each": 2_000, "rate": 2_000}
    for start in running[1:]:
        bench.end(start)
    accounts.sweep(bench.now)
    assert accounts.counts() == {"each": 1, "rate": 2_000}
    accounts.sweep(bench.now + 70)
    assert accounts.counts() == {"each": 1, "rate": 1}, "what runs may still report its use"
    bench.now += 70
    bench.end(running[0])
    accounts.sweep(bench.now)
    accounts.sweep(bench.now + 70)
    assert accounts.counts() == {"each": 0, "rate": 0}
    assert not accounts.touched
    assert not accounts.short
    assert not accounts.gone, "nothing was ever saved"


def test_keys_that_came_and_slept_leave_no_memory_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "REMEMBERED", 10)  # else the turns of a thousand tenants
    limits = {"each": KeyLimit("tenant", 1, "in_flight"), "rate": KeyLimit("tenant", 2, "second")}
    bench = bench_of(limits)
    keyed_, bays, most, sizes = bench.accounts.keyed, bench.matching.bays, 0, list[int]()
    tracemalloc.start()
    try:
        for wave in range(16):
            for number in range(60):
                bench.add("t", 3, tenant=f"t{wave}.{number}")
            for _ in range(4):
                for _, start in bench.until(bench.now + 1.0):
                    bench.end(start)
                keyed_.sweep(bench.now)
                bench.matching.look_again(bench.now)
                most = max(most, *keyed_.counts().values())
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert not bench.matching.window.count
    assert most <= 2 * 60, "of 960 keys"
    keyed_.sweep(bench.now + 5)
    assert set(keyed_.counts().values()) == {0}
    kept = (bays, bays.aside, keyed_.touched, keyed_.short, keyed_.roomy, keyed_.gone)
    assert [len(each) for each in kept] == [0] * len(kept)
    assert len(bays._timers) <= SPARE
    assert sizes[-1] < sizes[5] + 30_000, "600 keys more take no more memory"


def test_full_keys_of_one_limit_leave_time_to_forget_those_of_another() -> None:
    limits = {
        "each": KeyLimit("tenant", 1, "in_flight", types=("long",)),
        "rate": KeyLimit("tenant", 1, "second", types=("short",)),
    }
    bench = bench_of(limits, long=TaskType(), short=TaskType())
    for number in range(keyed.DROPS + 1):
        bench.add("long", 1, tenant=f"t{number}")
    bench.run()
    for number in range(20):
        bench.add("short", 1, tenant=f"s{number}")
        for start in bench.run():
            bench.end(start)
        bench.now += 1
        bench.accounts.keyed.sweep(bench.now)
    assert bench.accounts.keyed.counts()["rate"] <= 2


def test_timers_of_bays_that_have_ended_are_dropped() -> None:
    bench = bench_of({"each": KeyLimit("tenant", 1, "day")})
    bench.add("t", 1, tenant="a")
    bench.run()
    for _ in range(300):
        [added] = bench.add("t", 1, tenant="a")
        bench.run()
        bench.matching.remove(added)
        bench.run()
    assert len(bench.matching.bays._timers) < 100


def test_a_task_on_a_resource_that_is_gone_counts_for_a_new_limit_in_flight() -> None:
    resources = {"r": Resource(takes={"t": {}}), "dear": Resource(takes={"t": {}}, price=1)}
    bench = Bench(Pool("p", resources=resources, types={"t": TaskType()}))
    bench.add("t", 2, tenant="a")
    running = bench.run()
    assert {start.resource for start in running} == {"r"}
    del resources["r"]
    for name in ("new", "newer"):
        limits = {name: KeyLimit("tenant", 2, "in_flight")}
        follow(bench, msgspec.structs.replace(bench.pool, resources=resources, limits=limits))
        bench.add("t", 1, tenant="a")
        assert not bench.run()
    for start in running:
        bench.end(start)
    assert len(bench.run()) == 2


def test_a_new_task_that_goes_before_those_without_room_starts_at_once() -> None:
    bench = bench_of({"tokens": KeyLimit("model", 10, "in_flight")}, t=TaskType(costs={"tokens": 1}))
    m, n = {"model": "m"}, {"model": "n"}
    bench.add("t", 1, tenant="a", costs={"tokens": 8.0}, keys=m)
    bench.run()
    bench.add("t", 1, tenant="b", costs={"tokens": 8.0}, keys=m)
    bench.add("t", 5, tenant="b", keys=n)
    bench.run()
    bench.add("t", 1, tenant="c", keys=m)
    assert tenants_of(bench.run()) == {"c": 1}


def test_a_change_of_a_limit_counts_for_what_runs_and_waits() -> None:
    bench = bench_of({"each": KeyLimit("tenant", 4, "in_flight")})
    bench.add("t", 20, tenant="a")
    running = bench.run()
    each = KeyLimit("tenant", 6, "in_flight")
    follow(bench, msgspec.structs.replace(bench.pool, limits={"each": each}))
    running += bench.run()
    assert len(running) == 6
    follow(bench, msgspec.structs.replace(bench.pool, limits={}))
    running += bench.run()
    assert len(running) == 20
    follow(bench, msgspec.structs.replace(bench.pool, limits={"new": KeyLimit("tenant", 20, "in_flight")}))
    bench.add("t", 3, tenant="a")
    assert not bench.run(), "tasks that started before the limit came hold its units"
    bench.end(running.pop())
    assert len(bench.run()) == 1


def test_a_limit_that_was_gone_for_less_than_its_period_goes_on_with_what_keys_had_used() -> None:
    rate = KeyLimit("tenant", 5, "minute")
    bench = bench_of({"rate": rate})
    bench.add("t", 7, tenant="a")
    assert len(bench.run()) == 5
    bench.now += 10
    follow(bench, msgspec.structs.replace(bench.pool, limits={}))
    assert len(bench.run()) == 2, "nothing counts them meanwhile"
    bench.accounts.keyed.sweep(bench.now)
    bench.now += 10
    follow(bench, msgspec.structs.replace(bench.pool, limits={"rate": rate}))
    bench.add("t", 7, tenant="a")
    assert not bench.run()
    bench.now += 42
    assert len(bench.run()) == 5


def test_nothing_is_kept_of_a_limit_that_is_gone_for_longer_or_comes_back_as_another_one() -> None:
    rate = KeyLimit("tenant", 5, "minute")
    for returns in (rate, KeyLimit("tenant", 5, "hour"), KeyLimit("model", 5, "minute")):
        bench = bench_of({"rate": rate})
        bench.add("t", 5, tenant="a", keys={"model": "m"})
        for start in bench.run():
            bench.end(start)
        follow(bench, msgspec.structs.replace(bench.pool, limits={}))
        if returns is rate:
            bench.now += 130
            for _ in range(2):
                bench.accounts.keyed.sweep(bench.now)
            assert not bench.accounts.keyed._former
        follow(bench, msgspec.structs.replace(bench.pool, limits={"rate": returns}))
        assert bench.accounts.keyed.counts() == {"rate": 0}
        assert not bench.accounts.keyed._former


def test_use_that_is_reported_counts_for_the_key() -> None:
    bench = bench_of({"tokens": KeyLimit("tenant", 10, "minute")}, t=TaskType(costs={"tokens": 5}))
    bench.add("t", 9, tenant="a")
    first, second = bench.run()
    first.charge.end(bench.now, {"tokens": 1.0})
    bench.matching.freed(first.charge, bench.now, is_refund=True)
    assert not bench.run(), "4 units came back, and the next task costs 5"
    second.charge.end(bench.now, {"tokens": 4.0})
    bench.matching.freed(second.charge, bench.now, is_refund=True)
    assert len(bench.run()) == 1


def test_a_task_that_is_cancelled_aside_or_after_its_call_leaves_its_place() -> None:
    bench = bench_of({"each": KeyLimit("tenant", 1, "in_flight")}, calls=2)
    added = bench.add("t", 4, tenant="a")
    bench.add("t", 1, tenant="b")
    first, other = bench.run()
    bench.matching.remove(added[1])
    bench.add("t", 3, tenant="b")
    bench.end(first)
    bench.matching.remove(added[2])
    [last] = bench.run()
    assert last.waiting is added[3]
    bench.end(other)
    bench.end(last)
    assert tenants_of(bench.run()) == {"b": 1}
    assert bench.matching.window.count == 2


def test_a_type_with_a_share_loses_no_task_whose_key_is_full() -> None:
    bench = bench_of({"each": KeyLimit("tenant", 1, "in_flight")}, t=TaskType(0, share=0.4), u=TaskType(0))
    for number in range(10):
        for kind in "tu":
            bench.add(kind, 5, tenant=f"k{number}")
    ended = 0
    while running := bench.run():
        for start in running:
            bench.end(start)
            ended += 1
    assert ended == 100
    assert not bench.matching.bays
    assert not bench.matching.bays.aside


class Recount:
    """Counts the starts of each key again."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.held: dict[tuple[str, tuple[str, ...]], float] = defaultdict(float)
        self.times: dict[tuple[str, tuple[str, ...]], list[tuple[float, float]]] = defaultdict(list)

    def accounts(self, start: Start) -> list[tuple[str, KeyLimit, tuple[str, ...]]]:
        task = start.waiting.task
        values = {"tenant": task.tenant, **(task.keys or {})}
        return [
            (name, limit, tuple(values[each] for each in limit.names))
            for name, limit in self.pool.limits.items()
            if not limit.types or task.type in limit.types
        ]

    def start(self, at: float, start: Start) -> None:
        for name, limit, key in self.accounts(start):
            units, most = start.costs[limit.units or name], limit.amounts.get(",".join(key), limit.amount)
            if limit.per == "in_flight":
                self.held[name, key] += units
                assert self.held[name, key] <= most + 1e-6, (name, key)
                continue
            times = self.times[name, key]
            times.append((at, units))
            since = at // 1.0 if limit.per == "second" else at - 60.0
            used = sum(each for when, each in times if (when >= since if limit.per == "second" else when > since))
            assert used <= most + 1e-6, (name, key, at)

    def end(self, start: Start) -> None:
        for name, limit, key in self.accounts(start):
            if limit.per == "in_flight":
                self.held[name, key] -= start.costs[limit.units or name]


def random_pool(dice: random.Random) -> Pool:
    limits = {}
    for number in range(dice.randint(1, 4)):
        by: str | tuple[str, ...] = dice.choice(["tenant", "model", ("tenant", "model")])
        per: Period = dice.choice(["in_flight", "minute", "second"])
        kind: Kind | None = None
        exceptions = {"a": 6.0, "b": 3.0} if by == "tenant" else {}
        types = dice.choice([(), ("t",), ("t", "u")])
        limits[f"l{number}"] = KeyLimit(
            by, dice.randint(3, 9), per, dice.choice(["x", "y", ""]), kind, amounts=exceptions, types=types
        )
    kinds = {name: TaskType(dice.randint(0, 2), duration_s=dice.choice([0.1, 3.0])) for name in "tuv"}
    resources = {}
    for number in range(dice.randint(1, 4)):
        takes: dict[str, dict[str, float]] = {kind: {} for kind in kinds if dice.random() < 0.7}
        own = (Limit("x", dice.randint(4, 20), dice.choice(["second", "in_flight"])),)
        resources[f"r{number}"] = Resource(None, own, takes)
    pool = Pool("p", resources=resources, types=kinds, limits=limits)
    try:
        rules.check(pool)
    except errors.InvalidPool:
        return random_pool(dice)
    return pool


@pytest.mark.parametrize("seed", range(60))
def test_random_pools_exceed_no_limit_of_a_key_and_leave_nothing_that_could_start(seed: int) -> None:
    dice = random.Random(seed)
    bench, running = Bench(random_pool(dice)), []
    recount = Recount(bench.pool)

    def note(starts: list[tuple[float, Start]]) -> None:
        for at, start in starts:
            recount.start(at, start)
            running.append(start)

    def go_on(seconds: float) -> int:
        """Let time pass, with the host's look of each second; return how many tasks start."""
        before, end = len(running), bench.now + seconds
        while bench.now < end:
            note(bench.until(min(end, float(int(bench.now) + 1))))
            bench.matching.look_again(bench.now)
            note([(bench.now, start) for start in bench.run()])
        return len(running) - before

    for _ in range(120):
        what = dice.random()
        if what < 0.5:
            kind = dice.choice("tuv")
            own = {"x": float(dice.randint(0, 3))} if dice.random() < 0.2 else None
            keys = {"model": dice.choice(["m", "n"])}
            added = bench.add(kind, dice.choice([1, 5]), tenant=dice.choice("abc"), keys=keys, costs=own)
            if dice.random() < 0.1:
                bench.matching.remove(dice.choice(added))
        elif what < 0.8 and running:
            gone = running.pop(dice.randrange(len(running)))
            bench.end(gone)
            recount.end(gone)
        else:
            go_on(dice.choice([0.01, 0.3, 2.0, 20.0]))
        note([(bench.now, start) for start in bench.run()])
    while go_on(2.2):
        pass
    bench.accounts.keyed.sweep(bench.now)
    matching, pool = bench.matching, bench.pool
    matching.bays.returned += matching.bays.follow()
    matching.lineups.follow(pool, pool, list(matching._seats.values()), pool.resources)
    assert not bench.run(), "a look at all would start no more"
