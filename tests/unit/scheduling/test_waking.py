"""Nothing that can start stays waiting: each event looks at the resources that it gives room or tasks."""

from __future__ import annotations

import msgspec
import pytest

from emq_scheduling.model import Limit, Period, Pool, Resource, TaskType
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
