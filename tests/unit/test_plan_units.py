"""What the planner promises of units: groups that share a budget are on one host."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import pytest

from emq.allocation.grounds import Grounds
from emq.allocation.plan import handler_sets
from emq.allocation.plan.handler_sets import plan_for
from emq.allocation.plan.plan import PlacementReason, Plan, plan
from emq.allocation.plan.units import expanded, united
from emq.storage.names import topic_of
from emq.topics import budgets
from emq.topics.buckets import names_of
from emq.topics.model import Topic, TopicOptions, split
from emq_cli import forecast
from emq_cli.forecast import Forecast
from support.local_cluster import LocalCluster


def units_of(topics: Mapping[str, Topic]) -> dict[str, str]:
    """Return the unit of each topic that belongs to one."""
    found = {topic.name: budgets.unit_of(topic, topics) for topic in topics.values()}
    return {name: unit for name, unit in found.items() if unit is not None}


def tenants(count: int, endpoints: int, seed: int = 1) -> dict[str, Topic]:
    """Return tenants of several groups, each with endpoints, and as many topics without a budget."""
    rng = random.Random(seed)
    topics: list[Topic] = []
    for tenant in range(count):
        name = f"tenant-{tenant}"
        topics.append(split(Topic(name, rng.choice([20, 100, 240]), shared_s=1)))
        topics += [
            split(Topic(f"{name}.{i}", rng.choice([10, 100]), options=TopicOptions(budget=name)))
            for i in range(endpoints)
        ]
        topics.append(split(Topic(f"plain-{tenant}", rng.choice([20, 100, 240]))))
    rng.shuffle(topics)
    return {topic.name: topic for topic in topics}


def planned(topics: dict[str, Topic], weights: dict[str, float], before: dict[str, str] | None = None) -> Plan:
    quotas = forecast.quotas_of(topics.values())
    return plan_for({}, quotas, weights, before or {}, (), units_of(topics))


def hosts_of_units(topics: dict[str, Topic], owner: dict[str, str]) -> dict[str, set[str]]:
    units, found = units_of(topics), dict[str, set[str]]()
    for group, host in owner.items():
        if (unit := units.get(topic_of(group))) is not None:
            found.setdefault(unit, set()).add(host)
    return found


@pytest.mark.parametrize("seed", range(3))
def test_a_unit_is_on_one_host_and_the_loads_stay_even_while_hosts_come_and_go(seed: int) -> None:
    topics, before = tenants(300, 6, seed), dict[str, str]()
    quotas = forecast.quotas_of(topics.values())
    for hosts in (10, 9, 12, 12):
        made = planned(topics, {f"h{i}": 1.0 for i in range(hosts)}, before)
        assert made.owner.keys() == quotas.keys()
        assert all(len(found) == 1 for found in hosts_of_units(topics, made.owner).values())
        assert made.max_over_mean <= 1.10
        load = Counter[str]()
        for group, host in made.owner.items():
            load[host] += quotas[group]  # type: ignore[assignment]
        assert max(load.values()) / (sum(load.values()) / hosts) <= 1.11
        assert made.moved.keys() == {group for group, host in made.owner.items() if before.get(group) != host}
        before = made.owner
    assert planned(topics, {f"h{i}": 1.0 for i in range(12)}, before).moved == {}


def test_the_load_of_a_unit_is_the_qps_of_its_root() -> None:
    topics = {t.name: t for t in map(split, (Topic("root", 120, shared_s=1), _below("a", 900), _below("b", 900)))}
    assert sum(forecast.quotas_of(topics.values()).values()) == 120
    found = united(forecast.quotas_of(topics.values()), {}, units_of(topics))
    assert found.quotas == {"root/0": 120}
    assert len(found.members["root/0"]) == 3 + 18 + 18


def test_a_topic_that_becomes_a_budget_is_gathered_where_its_first_group_is() -> None:
    topics = tenants(40, 0)
    before = planned({name: _plain(topic) for name, topic in topics.items()}, dict.fromkeys("abcd", 1.0)).owner
    spread = next(
        name for name, topic in topics.items() if len({before[topic.group(i)] for i in range(topic.groups)}) > 1
    )
    made = planned(topics, dict.fromkeys("abcd", 1.0), before)
    if PlacementReason.EVENED not in made.moved.values():
        assert made.owner[f"{spread}/1"] == before[f"{spread}/0"]
    assert all(len(found) == 1 for found in hosts_of_units(topics, made.owner).values())
    assert PlacementReason.BUDGET in made.moved.values()


def test_a_new_topic_below_a_budget_comes_where_the_budget_is_and_nothing_else_moves() -> None:
    topics, weights = tenants(50, 2), dict.fromkeys("abc", 1.0)
    before = planned(topics, weights).owner
    topics["new"] = split(Topic("new", 400, options=TopicOptions(budget="tenant-7")))
    made = planned(topics, weights, before)
    assert made.moved == {f"new/{i}": PlacementReason.BUDGET for i in range(8)}
    assert made.owner["new/0"] == before["tenant-7/0"]


def test_a_unit_whose_host_is_gone_moves_as_a_whole() -> None:
    topics = tenants(50, 4)
    before = planned(topics, dict.fromkeys("abc", 1.0)).owner
    made = planned(topics, dict.fromkeys("bc", 1.0), before)
    assert {group for group, host in before.items() if host == "a"} <= made.moved.keys()
    assert all(len(found) == 1 for found in hosts_of_units(topics, made.owner).values())


def test_without_units_the_plan_is_that_of_the_groups() -> None:
    topics = {name: _plain(topic) for name, topic in tenants(30, 0).items()}
    quotas, weights = forecast.quotas_of(topics.values()), dict.fromkeys("abc", 1.0)
    assert plan_for({}, quotas, weights, {}, (), units_of(topics)) == plan(quotas, weights, {}, ())


def test_without_hosts_nothing_is_placed() -> None:
    assert planned(tenants(3, 2), {}).owner == {}
    topics = tenants(3, 2)
    of = united(forecast.quotas_of(topics.values()), {}, units_of(topics))
    assert expanded(Plan({}, {}), of, {}) == Plan({}, {})


def test_a_unit_goes_to_a_host_that_serves_the_most_of_its_topics() -> None:
    topics = {t.name: t for t in map(split, (Topic("root", 10, shared_s=1), _below("push.a"), _below("push.b")))}
    quotas, units = forecast.quotas_of(topics.values()), units_of(topics)

    def host(**serves: tuple[str, ...] | None) -> set[str]:
        return set(plan_for(serves, quotas, dict.fromkeys(serves, 1.0), {}, (), units).owner.values())

    assert host(x=("push.*",), y=("other",)) == {"x"}  # nobody serves the root, which has no messages
    assert host(x=("push.a",), y=("push.*",), z=("push.b",)) == {"y"}
    assert host(x=("push.*",), y=None) == {"y"}
    assert len(host(x=("other",), y=("another",))) == 1
    weights = {"x": 0.0, "y": 1.0}
    made = handler_sets.plan_for({"x": ("*",), "y": ("other",)}, quotas, weights, {}, (), units)
    assert set(made.owner.values()) == {"y"}


def hosts_of_buckets(family: str, **serves: tuple[str, ...] | None) -> set[str]:
    """Return the hosts that get buckets of a family; `none` has no weight."""
    weights = {host: float(host != "none") for host in serves}
    quotas = dict.fromkeys(names_of(family), 1.0)
    return set(plan_for(serves, quotas, weights, {}, ()).owner.values())


def test_a_bucket_goes_to_hosts_with_a_handler_for_its_whole_family() -> None:
    assert hosts_of_buckets("f.*", all=None, whole=("f.*",), wider=("f*", "x"), part=("f.a",)) == {
        *("all", "whole", "wider")
    }
    assert hosts_of_buckets("f.*", x=("g.*",), y=("f.*",), z=("f.a*",)) == {"y"}


@pytest.mark.parametrize("part", ["f.a", "f.a*", "f.?", "f*x", "?.a", "*.a", "[fg].a"])
def test_else_a_bucket_goes_to_hosts_with_a_handler_for_part_of_its_family(part: str) -> None:
    assert hosts_of_buckets("f.*", x=("g.*", "f", "fa*"), y=(part,), none=("f.*",)) == {"y"}


def test_a_bucket_of_a_family_that_no_host_serves_may_go_to_any_host() -> None:
    assert hosts_of_buckets("f.*", x=("g.*",), y=("f",), none=("f.*",)) == {"x", "y"}
    assert hosts_of_buckets("*", x=("f.a",), y=("*",)) == {"y"}


def test_a_topic_of_no_family_that_no_host_serves_may_go_to_any_host() -> None:
    serves: handler_sets.Serves = {"x": ("f.*",), "y": ()}
    owner = plan_for(serves, {f"t{i}/0": 1.0 for i in range(20)}, {"x": 1.0, "y": 1.0}, {}, ()).owner
    assert {*owner.values()} == {"x", "y"}


def test_a_family_served_by_some_leaves_the_groups_of_topics_where_their_handlers_are() -> None:
    serves: handler_sets.Serves = {"x": ("f.*", "b"), "y": ("a",)}
    quotas = {**dict.fromkeys(names_of("f.*"), 1.0), "a/0": 10.0, "b/0": 10.0}
    owner = plan_for(serves, quotas, {"x": 1.0, "y": 1.0}, {}, ()).owner
    assert (owner["a/0"], owner["b/0"], {owner[name] for name in names_of("f.*")}) == ("y", "x", {"x"})


def test_a_forecast_keeps_units_together() -> None:
    topics = tenants(100, 3)
    made = Forecast(forecast.quotas_of(topics.values()), units=units_of(topics))
    assert made.start(10).max_over_mean <= 1.10
    assert made.add(2).moves_over_minimum < 5


async def test_hosts_in_one_process_share_units_as_those_of_a_cluster_do() -> None:
    epochs = iter(range(1, 1_000))

    async def next_epoch() -> int:
        return next(epochs)

    cluster, topics = LocalCluster(next_epoch), tenants(20, 3)
    members = [cluster.member(host) for host in "abc"]
    for member in members:
        await member.join()
    await members[0].offer(forecast.quotas_of(topics.values()), 1, Grounds(units_of(topics)))
    owner = {}
    for member in members:
        async for assignment in member.assignments():
            owner |= dict.fromkeys(assignment.groups, member.host)
            break
    assert set(owner.values()) == set("abc")
    assert all(len(found) == 1 for found in hosts_of_units(topics, owner).values())


def _below(name: str, qps: float = 10) -> Topic:
    return Topic(name, qps, options=TopicOptions(budget="root"))


def _plain(topic: Topic) -> Topic:
    return split(Topic(topic.name, topic.qps))
