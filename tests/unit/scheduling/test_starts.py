"""What a start and a change of the pool cost: they are counted in looks at resources, not in time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from bench.scheduling import starts
from emq_scheduling.choice.bays import Bays
from emq_scheduling.choice.keeping import Keeping
from emq_scheduling.limits.account import Account
from emq_scheduling.limits.accounts import Accounts
from emq_scheduling.model import Limit, Pool, Resource, TaskType, Tenant
from support.matching_bench import Bench

NOW = 1_000.0


def counted(monkeypatch: pytest.MonkeyPatch, of: type, name: str) -> Counter[str]:
    """Count the calls of a method."""
    counts: Counter[str] = Counter()
    method: Callable[..., Any] = getattr(of, name)

    def call(self: object, *args: Any, **given: Any) -> Any:
        counts[name] += 1
        return method(self, *args, **given)

    monkeypatch.setattr(of, name, call)
    return counts


@pytest.mark.parametrize("per", ["second", "in_flight"])
@pytest.mark.parametrize("types", ["one", "each"])
@pytest.mark.parametrize("scarce", ["middle", "root"])
def test_a_start_looks_at_no_more_resources_below_a_scarce_parent_when_there_are_more(
    monkeypatch: pytest.MonkeyPatch, scarce: str, types: str, per: str
) -> None:
    looks = counted(monkeypatch, Keeping, "fits")
    each = {}
    for size in (40, 400):
        case = starts.Case(size, 4, scarce, per, types, 2)  # type: ignore[arg-type]
        load = starts.Load(starts.pool_of(case), case.tenants)
        load.run(0.5)
        looks.clear()
        count = load.run(0.5)
        assert count > 100
        each[size] = looks["fits"] / count
    assert each[40] < 4
    assert each[400] < max(4.0, 1.5 * each[40])


def test_a_change_follows_only_what_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    load = starts.Load(starts.pool_of(starts.Case(300, 4, "root", "second", "each", 2)), 2)
    load.run(0.5)
    looks, follows = counted(monkeypatch, Keeping, "fits"), counted(monkeypatch, Account, "follow")
    for name, change in starts.changes(load.pool).items():
        for _ in range(2):
            looks.clear()
            follows.clear()
            load.pool = msgspec.json.decode(msgspec.json.encode(change(load.pool)), type=Pool)
            load.follow(load.pool)
            load.matching.run(load.now, 1)
            assert follows["follow"] <= 1, name
            assert looks["fits"] <= 4, name


def test_a_changed_pool_does_what_a_new_one_would() -> None:
    """Each change of a pool, followed step by step, leaves the accounts and the costs of a pool that was so from the
    beginning."""
    types = {"t": TaskType(), "u": TaskType(priority=2)}

    def pool(**resources: Resource) -> Pool:
        return Pool("p", resources=resources, types=types, tenants={"a": Tenant(2.0)})

    def limited(amount: float, parent: str | None = None, *takes: str, paused: bool = False) -> Resource:
        limits = (Limit("requests", amount, "second"),)
        return Resource(parent, limits, {kind: {} for kind in takes}, adapts=False, paused=paused)

    versions = [
        pool(top=limited(8), a=limited(5, "top", "t"), b=limited(5, "top", "u")),
        pool(top=limited(8), mid=limited(2, "top"), a=limited(5, "mid", "t"), b=limited(5, "top", "u")),
        pool(top=limited(3), mid=limited(4, "top"), a=limited(5, "mid", "t", "u"), b=limited(5, None, "u")),
        pool(
            top=limited(3, None, paused=True), mid=limited(4, "top"), a=limited(5, "mid", "t"), b=limited(9, None, "u")
        ),
        pool(b=limited(9, None, "u", "t"), c=limited(4, "b", "t")),
    ]
    changed = Bench(versions[0])
    for version in [*versions, *reversed(versions)]:
        changed.now = float(int(changed.now) + 1)  # nothing of the second before counts
        changed.accounts.follow(version, changed.now)
        changed.keeping.follow(version, changed.now)
        changed.matching.follow(version)
        changed.pool = version
        new = Bench(version, changed.now)
        found = []
        for bench in (changed, new):
            added = bench.add("t", 30) + bench.add("u", 30)
            found.append(
                Counter((start.waiting.task.type, start.resource) for _, start in bench.until(bench.now + 0.999))
            )
            for waiting in added:
                bench.matching.remove(waiting)
        assert found[0].total() == found[1].total()
        assert found[0] == found[1]
        assert changed.matching.costing.per_s == new.matching.costing.per_s


def test_names_that_are_used_once_leave_nothing_once_their_use_counts_no_more() -> None:
    def pool(number: int) -> Pool:
        limits = (Limit("requests", 9, "second"), Limit(f"n{number}", 9, "second"))
        resources = {"stays": Resource(limits=limits, takes={"t": {}}), f"r{number}": Resource(limits=limits)}
        return Pool("p", resources=resources, types={"t": TaskType()})

    accounts = Accounts(pool(0), NOW)
    for number in range(1, 50):
        for name in ("stays", f"r{number - 1}"):
            assert accounts.charge(name, {}, NOW + number) is not None
        accounts.follow(pool(number), NOW + number)
        assert f"r{number - 1}" in accounts._former, "its use still counts, if it comes back in this second"
    assert len(accounts._former) <= 2
    assert len(accounts.account("stays")._known) <= 4
    back = msgspec.structs.replace(pool(49), resources={**pool(49).resources, **pool(48).resources})
    accounts.follow(back, NOW + 49)
    assert accounts.used(NOW + 49)["r48"]["requests/second"] == 1


@pytest.mark.parametrize("limits", ["room", "full"])
def test_a_start_looks_at_no_more_tasks_when_more_keys_have_no_room(
    monkeypatch: pytest.MonkeyPatch, limits: str
) -> None:
    looks = counted(monkeypatch, Bays, "holds_back")
    each = {}
    for keys in (50, 500):
        load = starts.Load(starts.pool_of_keys(limits), keys)
        load.run(0.5)
        looks.clear()
        count = load.run(0.5)
        assert count > 100
        each[keys] = looks["holds_back"] / count
    assert each[50] < 2.5
    assert each[500] < 2.5
