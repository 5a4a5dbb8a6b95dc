"""Which task starts where and when: cases by hand, and random pools whose starts are counted again by the test."""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter

import msgspec
import pytest

from emq_scheduling.choice.matching import Start
from emq_scheduling.choice.order import Gate
from emq_scheduling.choice.spreads import RELEASE
from emq_scheduling.choice.waiting import Waiting
from emq_scheduling.model import Limit, Pool, Resource, TaskType, Tenant
from support.matching_bench import Bench

EACH = {"requests": 1.0}


def types_of(starts: list[Start]) -> list[str]:
    return [start.waiting.task.type for start in starts]


def limited(amount: float, *types: str, **given: object) -> Resource:
    own = {kind: {} for kind in types}
    return Resource(limits=(Limit("requests", amount, "second"),), takes=own, **given)  # type: ignore[arg-type]


def bench_of(resources: dict[str, Resource], **types: TaskType) -> Bench:
    return Bench(Pool("p", resources=resources, types=types))


def test_the_urgent_go_first_also_through_a_shared_parent() -> None:
    pool = Pool(
        "p",
        resources={
            "account": limited(4),
            "marketing only": Resource(parent="account", takes={"marketing": {}}),
            "all": Resource(parent="account", takes={"marketing": {}, "code": {}}),
        },
        types={"code": TaskType(priority=0), "marketing": TaskType(priority=2)},
    )
    bench = Bench(pool)
    bench.add("marketing", 20)
    bench.add("code", 4)
    assert types_of(bench.run()) == ["code"] * 4


def test_room_is_kept_for_the_urgent_until_the_second_ends_and_is_then_used() -> None:
    bench = bench_of({"r": limited(50, "code", "marketing")}, code=TaskType(priority=0), marketing=TaskType(priority=2))
    bench.add("marketing", 500)
    early = bench.until(1000.0 + RELEASE - 0.01)
    assert 35 <= len(early) <= 49, "spread over the second, with room left"
    bench.add("code")
    assert types_of(bench.run()) == ["code"]
    late = bench.until(1001.0 - 1e-6)
    assert len(early) + 1 + len(late) == 50, "nothing of the second is lost"


def test_a_share_is_given_although_the_more_urgent_have_a_backlog() -> None:
    bench = bench_of(
        {"r": limited(40, "code", "marketing")}, code=TaskType(priority=0), marketing=TaskType(priority=2, share=0.25)
    )
    bench.add("code", 200)
    bench.add("marketing", 200)
    counts = Counter(types_of([start for _, start in bench.until(1002.0)]))
    assert counts["marketing"] == pytest.approx(20, abs=2)
    assert counts.total() == 80


@pytest.mark.parametrize(
    ("weights", "shares", "changed", "then"),
    [
        ({"a": 1.0, "b": 3.0}, {"a": 20, "b": 60}, {"a": 3.0, "b": 1.0}, {"a": 60, "b": 20}),
        ({"a": 0.01}, {"a": 1, "b": 79}, {"a": 3.0}, {"a": 60, "b": 20}),
    ],
    ids=["exchanged", "tiny"],
)
def test_tenants_share_by_weight_and_a_change_counts_for_the_backlog_at_once(
    weights: dict[str, float], shares: dict[str, int], changed: dict[str, float], then: dict[str, int]
) -> None:
    tenants, others = ({name: Tenant(weight) for name, weight in each.items()} for each in (weights, changed))
    pool = Pool("p", resources={"r": limited(80, "t")}, types={"t": TaskType()}, tenants=tenants)
    bench = Bench(pool)
    for tenant in ("a", "b"):
        bench.add("t", 400, tenant=tenant)
    assert Counter(start.waiting.task.tenant for _, start in bench.until(1001.0)) == shares
    bench.matching.follow(msgspec.structs.replace(pool, tenants=others))
    counts = Counter(start.waiting.task.tenant for _, start in bench.until(1002.0))
    assert counts == pytest.approx(then, abs=1)


def test_a_tenant_is_charged_by_the_limits_of_parents_too() -> None:
    account = Resource(limits=(Limit("tokens", 1000, "second"),))
    pool = Pool("p", resources={"account": account, "r": Resource("account", takes={"t": {}})}, types={"t": TaskType()})
    bench = Bench(pool)
    bench.add("t", 400, tenant="large", costs={"tokens": 90})
    bench.add("t", 400, tenant="small", costs={"tokens": 10})
    used: Counter[str] = Counter()
    for _, start in bench.until(1005.0):
        used[start.waiting.task.tenant] += int(start.costs["tokens"])
    assert used["large"] == pytest.approx(2500, rel=0.1)
    assert used["small"] == pytest.approx(2500, rel=0.1)


def test_a_tenant_that_comes_late_is_not_behind_the_backlog_of_others() -> None:
    pool = Pool("p", resources={"r": limited(10, "t")}, types={"t": TaskType()})
    bench = Bench(pool)
    bench.add("t", 400, tenant="a")
    bench.until(1003.0)
    bench.add("t", 5, tenant="b")
    counts = Counter(start.waiting.task.tenant for _, start in bench.until(1004.0))
    assert counts == {"a": 5, "b": 5}


@pytest.mark.parametrize("backlog", [50, 5000])
def test_a_tenant_that_asks_for_little_starts_at_once_beside_any_backlog(backlog: int) -> None:
    bench = Bench(Pool("p", resources={"r": limited(50, "t")}, types={"t": TaskType()}))
    waits = []
    used: Counter[int] = Counter()
    for step in range(20):
        bench.add("t", backlog // 10, tenant="a")
        used.update(int(at) for at, _ in bench.until(1000.05 + step / 4.1))
        [little] = bench.add("t", tenant="b")
        began = bench.now
        while not little.is_gone:
            used.update([int(bench.now)] * len(bench.run()))
            bench.now += 0.001
        waits.append(bench.now - began)
    assert sorted(waits)[-2] < 0.06, waits
    if backlog > 500:
        assert {used[second] for second in (1001, 1002, 1003)} == {50}, "and nothing is left unused for it"


@pytest.mark.parametrize("seed", range(3))
def test_a_tenant_that_asks_for_little_does_not_wait_until_tenants_with_a_backlog_may_go_on(seed: int) -> None:
    """The starts of those with a backlog are spread over the second, and there is room all the time."""
    random_ = random.Random(seed)
    tenants = {f"large-{number}": Tenant(weight=1 + number % 10) for number in range(200)}
    bench = Bench(Pool("p", resources={"r": limited(1000, "t")}, types={"t": TaskType()}, tenants=tenants))
    for name, tenant in tenants.items():
        bench.add("t", 20 * int(tenant.weight), tenant=name)
    waits: list[float] = []
    started = 0
    due = 1000.5
    while bench.now < 1004.0 or len(waits) < 20:
        started += len(bench.run())
        if bench.now >= due:
            [little] = bench.add("t", tenant=f"little-{len(waits) % 20}")
            began, due = bench.now, bench.now + random_.expovariate(10)
            while not little.is_gone:
                bench.now += 0.001
                started += len(bench.run())
            waits.append(bench.now - began)
        bench.now += 0.001
    assert sorted(waits)[len(waits) // 2] < 0.003, waits
    assert started >= 1000 * int(bench.now - 1000.0), "and nothing is left unused for it"


def test_a_near_deadline_goes_before_other_tenants_and_may_raise_the_priority() -> None:
    types = {"code": TaskType(priority=0), "notice": TaskType(priority=2, near_priority=0)}
    pool = Pool("p", resources={"r": limited(2, "code", "notice")}, types=types)
    bench = Bench(pool)
    bench.add("code", 40)
    [far] = bench.add("notice", deadline=1100.0)
    [soon] = bench.add("notice", deadline=1004.0)
    bench.run()
    assert not soon.is_gone
    starts = bench.until(1004.0)
    assert soon.is_gone, "three quarters of its time were over"
    assert not far.is_gone
    assert next(at for at, start in starts if start.waiting is soon) == pytest.approx(1003.0, abs=0.1)


def test_small_tasks_use_a_gap_and_do_not_delay_the_large_one() -> None:
    resource = Resource(limits=(Limit("units", 10, "minute"),), takes={"large": {"units": 8}, "small": {"units": 1}})
    pool = Pool("p", resources={"r": resource}, types={"large": TaskType(priority=0), "small": TaskType(priority=0)})
    bench = Bench(pool)
    bench.add("small", 4)
    assert types_of(bench.run()) == ["small"] * 4
    [large] = bench.add("large")
    bench.now = 1010.0
    bench.add("small", 6)
    assert types_of(bench.run()) == ["small"] * 2, "a third would be in the window when the large one could start"
    starts = bench.until(1062.0)
    assert starts[0][1].waiting is large
    assert starts[0][0] == pytest.approx(1061.0, abs=0.01)


def test_a_gap_that_closes_before_the_large_task_could_start_is_used() -> None:
    resource = Resource(limits=(Limit("units", 10, "second"),), takes={"large": {"units": 8}, "small": {"units": 1}})
    pool = Pool("p", resources={"r": resource}, types={"large": TaskType(priority=0), "small": TaskType(priority=0)})
    bench = Bench(pool)
    bench.add("large", 2)
    bench.add("small", 5)
    assert types_of(bench.run()) == ["large", "small", "small"]


@pytest.mark.parametrize("priority", [0, 1])
def test_small_tasks_do_not_put_off_a_large_one_that_waits_for_units_in_flight(priority: int) -> None:
    resource = Resource(limits=(Limit("gb", 80, "in_flight"),), takes={"large": {"gb": 80}, "small": {"gb": 10}})
    types = {"large": TaskType(priority=priority, duration_s=5), "small": TaskType(priority=1, duration_s=10)}
    bench = Bench(Pool("p", resources={"r": resource}, types=types))
    running: list[tuple[float, Start]] = []
    large: list[Waiting] = []
    for second in range(60):
        bench.now = 1000.0 + second
        for ends_at, start in [each for each in running if each[0] <= bench.now]:
            running.remove((ends_at, start))
            bench.end(start)
        bench.add("small", 1)
        if second == 20:
            large = bench.add("large")
        if large and large[0].is_gone:
            break
        running += [(bench.now + types[start.waiting.task.type].duration_s, start) for start in bench.run()]
    assert large[0].is_gone
    assert second <= (30 if priority == 0 else 40), "all that ran when it was next has ended after 10 s"


def test_a_short_task_uses_units_in_flight_until_a_large_one_can_start() -> None:
    resource = Resource(
        limits=(Limit("gb", 80, "in_flight"),), takes={"long": {"gb": 60}, "large": {"gb": 80}, "small": {"gb": 10}}
    )
    types = {
        "long": TaskType(priority=0, duration_s=10),
        "large": TaskType(priority=1, duration_s=5),
        "small": TaskType(priority=2, duration_s=4),
    }
    bench = Bench(Pool("p", resources={"r": resource}, types=types))
    bench.add("long")
    assert types_of(bench.run()) == ["long"]
    bench.add("large")
    bench.add("small", 1)
    assert types_of(bench.run()) == ["small"]
    bench.now = 1007.0
    bench.add("small", 1)
    assert types_of(bench.run()) == [], "it would end after the long one"


def test_a_task_too_large_for_now_does_not_stop_what_comes_behind() -> None:
    resource = Resource(limits=(Limit("units", 10, "second"),), takes={"t": {}})
    bench = Bench(Pool("p", resources={"r": resource}, types={"t": TaskType()}))
    bench.add("t", 3, costs={"units": 50})
    bench.add("t", 4)
    assert len(bench.run()) == 4


def test_the_cheaper_resource_is_used_first_and_weights_share_the_rest() -> None:
    resources = {
        "cheap": limited(2, "t"),
        "heavy": limited(100, "t", price=1.0, weight=3.0),
        "light": limited(100, "t", price=1.0),
    }
    bench = Bench(Pool("p", resources=resources, types={"t": TaskType()}))
    bench.add("t", 42)
    counts = Counter(start.resource for start in bench.run())
    assert counts == {"cheap": 2, "heavy": 30, "light": 10}


def test_tasks_of_a_key_keep_to_their_resource_but_not_for_long() -> None:
    resources = {f"r{i}": limited(1, "t") for i in range(4)}
    bench = Bench(Pool("p", resources=resources, types={"t": TaskType()}))
    bench.add("t", 3, key="k")
    starts = bench.until(1001.5)
    own = starts[0][1].resource
    assert [(at, start.resource == own) for at, start in starts if at < 1001.0] == [(1000.0, True)]
    assert len(starts) == 3, "the third goes elsewhere after a second"
    bench.until(1002.0)
    bench.matching.lineups.close(own, math.inf)
    bench.add("t", key="k")
    assert [start.resource != own for start in bench.run()] == [True]


def test_a_closed_resource_starts_nothing_and_owes_nothing_later() -> None:
    resources = {"a": limited(10, "t"), "b": limited(10, "t")}
    bench = Bench(Pool("p", resources=resources, types={"t": TaskType()}))
    bench.matching.lineups.close("a", 1005.0)
    bench.add("t", 50)
    assert {start.resource for _, start in bench.until(1004.99)} == {"b"}
    bench.add("t", 100)
    counts = Counter(start.resource for _, start in bench.until(1006.0))
    assert counts == {"a": 10, "b": 10}


def test_a_parent_in_flight_wakes_all_below_it_when_a_task_ends() -> None:
    parent = Resource(limits=(Limit("calls", 1, "in_flight"),))
    resources = {"p": parent, "a": Resource(parent="p", takes={"t": {}}), "b": Resource(parent="p", takes={"u": {}})}
    bench = Bench(Pool("p", resources=resources, types={"t": TaskType(), "u": TaskType()}))
    bench.add("t")
    bench.add("u")
    [first] = bench.run()
    assert bench.run() == []
    bench.end(first)
    [second] = bench.run()
    assert {first.resource, second.resource} == {"a", "b"}


def test_a_task_taken_out_does_not_start() -> None:
    bench = Bench(Pool("p", resources={"r": limited(2, "t")}, types={"t": TaskType()}))
    added = bench.add("t", 3)
    bench.matching.remove(added[0])
    assert [start.waiting for start in bench.run()] == added[1:]
    assert len(bench.matching.window) == 0


@pytest.mark.parametrize("seed", range(12))
def test_random_pools_keep_every_limit_and_leave_nothing_idle(seed: int) -> None:
    rng = random.Random(seed)
    pool = _random_pool(rng)
    bench = Bench(pool, 1000.3, seed)
    bench.accounts.begin(bench.now)
    ends: list[tuple[float, int, Start]] = []
    starts: list[tuple[float, Start]] = []
    added = 0
    while bench.now < 1012.0:
        if rng.random() < 0.2:
            kind, tenant = rng.choice(list(pool.types)), rng.choice(["", "a", "b"])
            costs = {"tokens": rng.choice([1.0, 100.0, 400.0])} if rng.random() < 0.1 else None
            deadline = bench.now + 5 * rng.random() if rng.random() < 0.2 else None
            added += len(bench.add(kind, rng.randint(1, 40), tenant=tenant, deadline=deadline, costs=costs))
        for start in bench.run():
            starts.append((bench.now, start))
            heapq.heappush(ends, (bench.now + 0.5 * rng.random(), len(starts), start))
        _check_nothing_idle(bench)
        at = min(bench.matching.next_at(bench.now), ends[0][0] if ends else math.inf, bench.now + 0.1 * rng.random())
        bench.now = max(at, bench.now + 1e-6)
        while ends and ends[0][0] <= bench.now:
            ended = heapq.heappop(ends)[2]
            bench.end(ended)
    assert starts
    assert min(at for at, _ in starts) >= 1001.0, "a former owner may have used the second of the beginning"
    assert len({start.waiting.task.id for _, start in starts}) == len(starts)
    assert len(starts) + len(bench.matching.window) == added
    _check_limits(pool, starts)


def _random_pool(rng: random.Random) -> Pool:
    types = {
        f"t{i}": TaskType(priority=rng.choice([0, 1, 2]), share=rng.choice([0, 0, 0, 0.2]))
        for i in range(rng.randint(1, 5))
    }
    resources: dict[str, Resource] = {}
    parents: list[str | None] = [None]
    for i in range(rng.randint(0, 3)):
        limits = [Limit("requests", rng.randint(5, 60), "second")]
        if rng.random() < 0.3:
            limits.append(Limit("requests", rng.randint(3, 9), "in_flight"))
        resources[f"a{i}"] = Resource(parent=rng.choice(parents), limits=tuple(limits))
        parents.append(f"a{i}")
    for i in range(rng.randint(1, 12)):
        limits = [Limit("requests", rng.randint(1, 20), "second")]
        if rng.random() < 0.3:
            limits.append(Limit("tokens", rng.randint(500, 3000), "minute"))
        if rng.random() < 0.3:
            limits.append(Limit("requests", rng.randint(1, 4), "in_flight"))
        takes = {kind: {"tokens": float(rng.randint(1, 30))} for kind in types if rng.random() < 0.6} or {"t0": {}}
        weight, price = rng.choice([1.0, 2.0]), rng.choice([0.0, 0.0, 1.0])
        resources[f"r{i}"] = Resource(rng.choice(parents), tuple(limits), takes, weight, price)
    return Pool("p", resources=resources, types=types)


def _check_nothing_idle(bench: Bench) -> None:
    """No task that is next waits while an able resource has room that nothing keeps from it."""
    matching = bench.matching
    for number, level in matching.window.levels():
        for line, kind in level.lines_for(set(bench.pool.types), None):
            head = line.head()
            assert head is not None
            for name in bench.pool.able(kind):
                costs = bench.pool.costs(kind, name) | (head[1].costs or {})
                wants = [sleep.costs for other, sleep in matching._seats[name].asleep.items() if other < number]
                if wants or not bench.keeping.fits(name, costs, bench.now, number):
                    continue
                seat = matching._seats[name]
                gate = seat.spots[number][0] if number in seat.spots else None
                if not (isinstance(gate, Gate) and gate.is_shut):
                    assert not bench.accounts.fits(name, costs, bench.now) or seat.asleep, (kind, name, bench.now)
                    continue
                tried = [each.asleep[number] for each in gate.seats(99) if number in each.asleep]
                lacked = [sleep for sleep in tried if sleep.gate == (gate, gate.opened)]
                if lacked and all(sleep.node is not None and not sleep.kept for sleep in lacked):
                    head_there = level.next_for(seat.types, name)
                    assert head_there is not None
                    own = matching.costing.of(head_there, name)
                    assert not bench.accounts.fits(name, own, bench.now), (kind, name, bench.now)


def _check_limits(pool: Pool, starts: list[tuple[float, Start]]) -> None:
    used: Counter[tuple[str, str, str, int]] = Counter()
    for at, start in starts:
        for name in (start.resource, *pool.parents(start.resource)):
            for limit in pool.resources[name].limits:
                if limit.per == "second":
                    used[name, limit.name, limit.per, int(at)] += start.costs[limit.name]  # type: ignore[assignment]
                elif limit.per == "minute":  # the whole run is shorter than a minute
                    used[name, limit.name, limit.per, 0] += start.costs[limit.name]  # type: ignore[assignment]
    for (name, of, per, _), units in used.items():
        amount = next(li.amount for li in pool.resources[name].limits if (li.name, li.per) == (of, per))
        assert units <= amount + 1e-6, (name, of, per)


def follow(bench: Bench, pool: Pool) -> None:
    bench.pool = pool
    bench.accounts.follow(pool, bench.now)
    bench.keeping.follow(pool, bench.now)
    bench.matching.follow(pool)


def test_what_waited_behind_a_large_task_starts_when_that_is_cancelled() -> None:
    takes = {"large": {"tokens": 100.0}, "small": {}}
    bench = bench_of(
        {"r": Resource(limits=(Limit("tokens", 100, "day"),), takes=takes)}, large=TaskType(), small=TaskType()
    )
    bench.add("small")
    bench.run()
    [large] = bench.add("large")
    assert not bench.run(), "it waits for the next day"
    bench.add("small", 5, at=bench.now + 1)
    bench.matching.remove(large)
    assert types_of(bench.run()) == ["small"] * 5


def test_a_small_task_that_comes_later_fills_the_gap_that_a_large_one_waits_in() -> None:
    takes = {"large": {"tokens": 60.0}, "small": {"tokens": 0.0}}
    bench = bench_of(
        {"r": Resource(limits=(Limit("tokens", 100, "day"),), takes=takes)}, large=TaskType(), small=TaskType()
    )
    bench.add("large", 2)
    assert types_of(bench.run()) == ["large"]
    bench.add("small", 3)
    assert types_of(bench.run()) == ["small"] * 3
    bench.add("large", costs={"tokens": 30.0})
    assert len(bench.run()) == 1, "its own costs are lower than those of its type"


def test_a_changed_priority_counts_for_the_tasks_that_wait_already() -> None:
    def pool(priority: int) -> Pool:
        types = {"a": TaskType(priority=1), "b": TaskType(priority=priority)}
        return Pool("p", resources={"r": limited(10, "a", "b")}, types=types)

    bench = Bench(pool(2))
    bench.add("a", 100)
    bench.add("b", 10)
    assert types_of(bench.run()) == ["a"] * 10
    follow(bench, pool(0))
    bench.now = 1001.0
    assert types_of(bench.run()) == ["b"] * 10


def test_a_task_waits_once_however_often_its_priority_changes_to_and_fro() -> None:
    bench = bench_of({"r": limited(1, "t")}, t=TaskType(priority=1, near_priority=0))
    bench.add("t", 10)
    bench.add("t", 10, deadline=bench.now)  # near, so they stay where the others come and go
    for priority in (1, 0, 1, 0):
        follow(bench, Pool("p", resources=bench.pool.resources, types={"t": TaskType(priority, near_priority=0)}))
        bench.run()
        assert len({*bench.matching.window.all()}) == len(bench.matching.window.all()) == 19


def test_tasks_of_a_resource_that_was_taken_away_leave_room_to_others() -> None:
    def pool(resources: dict[str, Resource]) -> Pool:
        account = {"account": Resource(limits=(Limit("slots", 2, "in_flight"),))}
        return Pool("p", resources=account | resources, types={"t": TaskType(), "u": TaskType()})

    other = {"other": Resource("account", takes={"u": {}})}
    bench = Bench(pool({"gone": Resource("account", takes={"t": {}})} | other))
    bench.add("t", 2)
    running = bench.run()
    follow(bench, pool(other))
    bench.add("u", 2)
    assert not bench.run()
    for start in running:
        bench.end(start)
    assert types_of(bench.run()) == ["u", "u"]


def test_memory_does_not_grow_with_what_starts_and_leaves_while_a_resource_sleeps() -> None:
    pool = Pool(
        "p",
        resources={
            "account": Resource(limits=(Limit("slots", 5, "in_flight"),)),
            "free": Resource("account", takes={"t": {}}),
            "used up": Resource("account", (Limit("quota", 1, "day"),), {"t": {}}),
            "paused": Resource(takes={"p": {}}, paused=True),
        },
        types={"t": TaskType(), "p": TaskType()},
    )
    bench = Bench(pool)
    bench.add("t", 1_000)
    bench.add("p", 10)
    running = bench.run()
    for _ in range(900):
        start = running.pop(0)
        bench.end(start)
        bench.matching.remove(bench.add("p")[0])
        running += bench.run()
    assert len(bench.matching.lineups._timers) < 10
    level = bench.matching.window.level(1)
    assert level is not None
    assert len(level.lines["p", None][None]._tasks[""]) < 200
