"""What if: changes written as text, and forecasts with and without them."""

from __future__ import annotations

import pytest

from emq.runtime import errors
from emq_scheduling.forecast.what_if import changed, what_if
from emq_scheduling.model import Calendar, Hours, Limit, Pool, Resource, TaskType
from emq_scheduling.pools import rules
from emq_scheduling.records.snapshot import PoolState

TEN = Resource(parent="account", limits=(Limit("requests", 10, "second"),), takes={"a": {}})
POOL = Pool(
    "p",
    resources={"account": Resource(limits=(Limit("requests", 100, "second"),)), "c-1": TEN, "c-2": TEN},
    types={"a": TaskType(), "b": TaskType()},
)


def test_one_more_resource_shortens_the_waits() -> None:
    found = what_if(POOL, PoolState(1e9, {"a": 1200}), changed(POOL, ["add c-3=copy-of:c-1"]))
    assert found.before.types["a"].p99_s == pytest.approx(59.4, rel=0.02)
    assert found.after.types["a"].p99_s == pytest.approx(39.6, rel=0.02)
    assert found.after.starts == {name: pytest.approx(400) for name in ("c-1", "c-2", "c-3")}


def test_a_type_that_only_one_pool_has_is_left_out_of_the_other_forecast() -> None:
    fewer = Pool("p", resources=POOL.resources, types={"a": TaskType()})
    found = what_if(POOL, PoolState(1e9, {"a": 100, "b": 5}), fewer, 60.0)
    assert found.before.drained_s is None
    assert found.after.drained_s == pytest.approx(5)


def test_changes_are_applied_one_after_the_other() -> None:
    found = changed(
        POOL,
        [
            "add name=copy-of:c-2",
            "limit c-1 requests=50/second",
            "limit  name  requests = none/second",
            "limit name tokens=6e3/minute",
            "takes name=a, b",
            "remove=c-2",
            "pause c-1",
        ],
    )
    assert list(found.resources) == ["account", "c-1", "name"]
    assert found.resources["c-1"].limits == (Limit("requests", 50, "second"),)
    assert found.resources["c-1"].paused
    assert found.resources["name"].limits == (Limit("tokens", 6000, "minute"),)
    assert found.resources["name"].takes == {"a": {}, "b": {}}
    assert not changed(found, ["resume c-1"]).resources["c-1"].paused
    assert POOL.resources["c-1"].limits == (Limit("requests", 10, "second"),)


def test_names_may_have_spaces_and_begin_alike() -> None:
    made = changed(POOL, ["add c-1 b=copy-of:c-1", "limit c-1 b requests=7/second", "limit c-1 requests=5/second"])
    assert made.resources["c-1 b"].limits == (Limit("requests", 7, "second"),)
    assert made.resources["c-1"].limits == (Limit("requests", 5, "second"),)


def test_a_parent_goes_with_all_below_it() -> None:
    assert changed(POOL, ["add spare=copy-of:c-1", "remove account"]).resources == {}


@pytest.mark.parametrize("change", ["remove provider", "limit provider tokens=none/minute", "remove large"])
def test_what_nobody_limits_any_more_costs_nothing_after_the_change(change: str) -> None:
    pool = Pool(
        "p",
        resources={
            "provider": Resource(
                limits=(Limit("tokens", 6000, "minute"), Limit("calls", 5, "second")), calendar="office"
            ),
            "large": Resource("provider", takes={"chat": {"tokens": 900}}),
            "small": Resource(limits=(Limit("calls", 2, "second"),), takes={"chat": {}}),
        },
        types={"chat": TaskType(costs={"tokens": 700})},
        calendars={"office": Calendar(hours=(Hours("08:00", "18:00", amounts={"tokens": 3000}),))},
    )
    rules.check(pool)
    found = what_if(pool, PoolState(1e9, {"chat": 100}), changed(pool, [change]), 3600.0)
    assert found.after.drained_s is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("remove", "cannot be read; write add NAME=copy-of:RESOURCE, remove RESOURCE"),
        ("destroy c-1", "cannot be read"),
        ("remove c-9", "pool 'p' has no resource 'c-9'; correct the name"),
        ("add c-3", "write add NAME=copy-of:RESOURCE"),
        ("add c-1=copy-of:c-2", "exists already; choose another name"),
        ("limit c-1", "write limit RESOURCE requests=50/second"),
        ("limit c-1 requests=many/second", "amount 'many' is not a number"),
        ("limit c-1 requests=5/week", "period 'week' is not known; choose one of second, minute, hour, day, in_flight"),
        ("limit c-1 requests=-5/second", "-5"),
        ("limit c-1 requests=nan/second", "nan"),
        ("takes c-1=z", "z"),
        ("pause c-9", "no resource"),
    ],
)
def test_a_change_that_cannot_be_made_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(errors.InvalidPool) as refused:
        changed(POOL, [text])
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
