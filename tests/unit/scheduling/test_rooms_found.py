"""Nothing that can start stays waiting: each event looks at the resources that it gives room or tasks."""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec
import pytest

from emq.runtime import errors
from emq_scheduling.choice.costing import Costing
from emq_scheduling.choice.matching import Start
from emq_scheduling.model import Limit, Period, Pool, Resource, TaskType
from emq_scheduling.pools import rules
from support.matching_bench import Bench


def resource(parent: str | None, amount: float, *takes: str, per: Period = "second", limit: str = "units") -> Resource:
    limits = (Limit(limit, amount, per),) if amount else ()
    return Resource(parent, limits, {kind: {} for kind in takes})


def follow(bench: Bench, pool: Pool) -> None:
    bench.accounts.follow(pool, bench.now)
    bench.keeping.follow(pool, bench.now)
    bench.matching.follow(pool)
    bench.pool = pool


def test_a_type_that_gets_another_priority_is_found_there() -> None:
    resources = {"a": resource(None, 5, "t"), "b": resource(None, 5, "u")}
    types = {"t": TaskType(priority=1), "u": TaskType(priority=2)}
    bench = Bench(Pool("p", resources=resources, types=types))
    bench.add("u", 10)
    bench.add("t", 10)
    assert len(bench.run()) == 10
    follow(bench, Pool("p", resources=resources, types={**types, "t": TaskType(priority=2)}))
    bench.run()
    bench.now += 1.0
    assert [start.waiting.task.type for start in bench.run()].count("t") == 5


def test_a_limit_that_a_parent_has_no_more_does_not_hinder_the_resources_below_that_lacked_it() -> None:
    both = (Limit("units", 9, "second"), Limit("gone", 1, "in_flight"))
    top = Resource(limits=both)
    below = resource("top", 1, "t", "u", per="in_flight", limit="own")
    types = {"t": TaskType(), "u": TaskType()}
    bench = Bench(Pool("p", resources={"top": top, "a": below}, types=types))
    bench.add("t", 2)
    [running] = bench.run()
    changed = msgspec.structs.replace(top, limits=both[:1])
    follow(bench, Pool("p", resources={"top": changed, "a": below}, types=types))
    bench.add("u")
    assert not bench.run(), "its own limit is used up"
    bench.end(running)
    assert len(bench.run()) == 1


@pytest.mark.parametrize("first", ["parent", "child"])
def test_units_in_flight_of_a_parent_that_takes_tasks_itself_are_used_again_at_once(first: str) -> None:
    other = "child" if first == "parent" else "parent"
    resources = {
        "parent": resource(None, 1, "t" if first == "parent" else "u", per="in_flight"),
        "child": resource("parent", 0, "t" if first == "child" else "u"),
    }
    bench = Bench(Pool("p", resources=resources, types={"t": TaskType(), "u": TaskType()}))
    bench.add("t")
    [running] = bench.run()
    bench.add("u")
    assert not bench.run()
    bench.end(running)
    assert [start.resource for start in bench.run()] == [other]


def test_a_parent_whose_health_is_better_again_lets_those_below_it_start_at_once() -> None:
    resources = {"parent": resource(None, 9, "t"), "child": resource("parent", 0, "u")}
    bench = Bench(Pool("p", resources=resources, types={"t": TaskType(), "u": TaskType()}))
    bench.accounts.set_factor("parent", 0.0, bench.now)
    bench.add("u", 3)
    assert not bench.run()
    bench.accounts.set_factor("parent", 1e-3, bench.now)
    bench.matching.lineups.freed("parent", is_refund=True)
    [running] = bench.run()
    bench.end(running)
    assert len(bench.run()) == 1, "the probe has ended"


@pytest.mark.parametrize("of_small", ["a", "b"])
def test_a_small_task_uses_room_below_a_parent_that_a_large_one_waits_for(of_small: str) -> None:
    """Also on a resource that came behind the parent's gate without a look of its own."""
    resources = {"top": resource(None, 9, per="in_flight")}
    resources |= {name: resource("top", 0, "large", *(["small"] if name == of_small else ())) for name in "ab"}
    types = {"large": TaskType(costs={"units": 8}, duration_s=9), "small": TaskType(duration_s=1)}
    bench = Bench(Pool("p", resources=resources, types=types))
    bench.add("large", 3)
    assert len(bench.run()) == 1
    bench.add("small")
    assert [start.waiting.task.type for start in bench.run()] == ["small"]


def test_nothing_is_remembered_of_tasks_and_resources_that_came_and_went() -> None:
    bench = Bench(Pool("p", resources={"a": resource(None, 5, "t", "u")}, types={"t": TaskType(), "u": TaskType(2)}))
    [gone] = bench.add("u")
    bench.matching.remove(gone)
    bench.add("t")
    assert len(bench.run()) == 1
    assert not bench.matching._fresh
    bench.matching._eager.add("a")  # a call that ended before its turn
    follow(bench, Pool("p", resources={"b": resource(None, 5, "t")}, types={"t": TaskType()}))
    assert not bench.matching._eager


def test_a_resource_without_room_just_before_a_second_ends_looks_again_at_its_end() -> None:
    bench = Bench(Pool("p", resources={"a": resource(None, 5, "t")}, types={"t": TaskType()}))
    bench.now = 1000.9996
    bench.add("t", 12)
    assert len(bench.run()) == 5
    assert bench.matching.next_at(bench.now) == 1001.0
    bench.now = 1001.0
    assert len(bench.run()) == 5


class Life:
    """A pool that changes at random, and tasks that come, end and are cancelled meanwhile."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.bench = Bench(Pool("p", types={kind: self.kind() for kind in "tuv"}))
        self.running: list[Start] = []
        for _ in range(12):
            self.change()

    def kind(self) -> TaskType:
        costs = {"x": float(self.random.randint(0, 3)), "y": float(self.random.randint(0, 2))}
        return TaskType(self.random.randint(0, 2), costs=costs, duration_s=self.random.choice([0.1, 5.0]))

    def limits(self) -> Iterator[Limit]:
        for name in "xy":
            if self.random.random() < 0.6:
                per = self.random.choice(["second", "in_flight", "minute"])
                yield Limit(name, self.random.randint(3, 12), per)  # type: ignore[arg-type]

    def change(self) -> None:
        """Add, change or take away a resource, or change a type."""
        pool, name = self.bench.pool, f"r{self.random.randrange(7)}"
        resources, types = dict(pool.resources), dict(pool.types)
        if self.random.random() < 0.2:
            types[self.random.choice("tuv")] = self.kind()
        elif name in resources and self.random.random() < 0.3:
            del resources[name]
        else:
            takes: dict[str, dict[str, float]] = {kind: {} for kind in types if self.random.random() < 0.5}
            parent = self.random.choice([None, *resources])
            resources[name] = Resource(parent, tuple(self.limits()), takes, paused=self.random.random() < 0.1)
        changed = Pool("p", resources=resources, types=types)
        try:
            rules.check(changed)
        except errors.InvalidPool:
            return
        follow(self.bench, changed)
        assert self.bench.matching.costing.per_s == pytest.approx(Costing(changed).per_s)

    def step(self) -> None:
        bench, what = self.bench, self.random.random()
        if what < 0.35:
            own = {"x": float(self.random.randint(0, 3)), "y": self.random.randint(0, 3) / 2} if what < 0.1 else None
            for waiting in bench.add(self.random.choice("tuv"), self.random.choice([1, 5]), costs=own):
                if self.random.random() < 0.1:
                    bench.matching.remove(waiting)
        elif what < 0.6 and self.running:
            bench.end(self.running.pop(self.random.randrange(len(self.running))))
        elif what < 0.8:
            self.change()
        else:
            self.go_on(self.random.choice([0.01, 0.4, 1.1]))
        self.running += bench.run()

    def go_on(self, seconds: float) -> int:
        """Let time pass, with the host's look of each second; return how many tasks start."""
        before, end = len(self.running), self.bench.now + seconds
        while self.bench.now < end:
            until = min(end, float(int(self.bench.now) + 1))
            self.running += [start for _, start in self.bench.until(until)]
            self.bench.matching.lineups.look_again(self.bench.now)
            self.running += self.bench.run()
        return len(self.running) - before


@pytest.mark.parametrize("seed", range(40))
def test_after_any_changes_nothing_waits_that_a_look_at_all_resources_would_start(seed: int) -> None:
    life = Life(seed)
    for _ in range(12):
        for _ in range(6):
            life.step()
        if not life.go_on(2.2):
            pool, matching = life.bench.pool, life.bench.matching
            matching.lineups.follow(pool, pool, list(matching._seats.values()), pool.resources)
            assert not life.bench.run()


def test_room_that_is_kept_of_one_limit_does_not_hold_back_tasks_that_need_none_of_it() -> None:
    scarce, free = Limit("scarce", 10, "second"), Limit("free", 100, "in_flight")
    taker = Resource(limits=(scarce, free), takes={"code": {}, "marketing": {}, "call": {}})
    kinds = {"code": TaskType(0), "marketing": TaskType(2), "call": TaskType(2, costs={"scarce": 0.0})}
    bench = Bench(Pool("p", resources={"a": taker}, types=kinds))
    bench.add("marketing", 20)
    assert not bench.run(), "room is kept for codes"
    bench.add("call", 3)
    assert [start.waiting.task.type for start in bench.run()] == ["call"] * 3
