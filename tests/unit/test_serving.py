"""Plans for hosts that do not all have handlers for the same topics."""

from __future__ import annotations

from collections import Counter

from emq.allocation.plan.handler_sets import plan_for
from emq.allocation.plan.plan import plan

QUOTAS = {f"{topic}/{n}": 10.0 for topic in ("orders", "orders.eu", "mails") for n in range(8)}


def hosts_of(owner: dict[str, str], topic: str) -> Counter[str]:
    return Counter(host for group, host in owner.items() if group.rpartition("/")[0] == topic)


def test_a_group_goes_to_hosts_with_a_handler_for_its_topic_alone() -> None:
    serves = {"a": ("orders*",), "b": None, "c": ("mails",)}
    made = plan_for(serves, QUOTAS, dict.fromkeys("abc", 1.0), {}, ())
    assert made.owner.keys() == QUOTAS.keys()
    assert hosts_of(made.owner, "mails").keys() == {"b", "c"}
    assert hosts_of(made.owner, "orders").keys() <= {"a", "b"}
    assert hosts_of(made.owner, "orders.eu").keys() <= {"a", "b"}


def test_a_topic_that_no_able_host_serves_may_be_anywhere() -> None:
    serves = {"a": ("orders",), "b": ("mails",)}
    made = plan_for(serves, QUOTAS, {"a": 0.0, "b": 1.0}, {}, ())
    assert set(made.owner.values()) == {"b"}
    assert made.owner.keys() == QUOTAS.keys()


def test_where_all_serve_all_the_plan_is_the_one_for_everybody() -> None:
    weights = dict.fromkeys("abc", 1.0)
    assert plan_for(dict.fromkeys("abc"), QUOTAS, weights, {}, ()) == plan(QUOTAS, weights, {}, ())


def test_what_stays_able_stays_where_it_is() -> None:
    weights = dict.fromkeys("ab", 1.0)
    before = plan(QUOTAS, weights).owner
    made = plan_for({"a": ("orders*",), "b": None}, QUOTAS, weights, before, ())
    assert all(made.owner[g] == before[g] for g in QUOTAS if g in made.owner and g not in made.moved)
    assert hosts_of(made.owner, "mails").keys() == {"b"}
