"""Predicted waits for the room of a key come true, and a process counts what it has submitted itself."""

from __future__ import annotations

import math

import pytest

from emq_scheduling.forecast import key_waits
from emq_scheduling.forecast.key_waits import KeyWaits, wait_of
from emq_scheduling.model import KeyLimit, Limit, Pool, Resource, TaskType
from emq_scheduling.records.snapshot import KeyLimitView, PoolState, Snapshot
from emq_scheduling.submission import Submission
from support.matching_bench import Bench


def pool_of(limit: KeyLimit, **types: TaskType) -> Pool:
    kinds = types or {"t": TaskType(duration_s=2.0)}
    taker = Resource(limits=(Limit("ample", 1e6, "in_flight"),), takes={kind: {} for kind in kinds})
    return Pool("p", resources={"r": taker}, types=kinds, limits={"rate": limit})


@pytest.mark.parametrize(
    "limit",
    [
        KeyLimit("tenant", 10, "minute"),
        KeyLimit("tenant", 10, "minute", kind="bucket", burst=4),
        KeyLimit("tenant", 10, "minute", kind="calendar"),
        KeyLimit("tenant", 3, "second"),
        KeyLimit("tenant", 3, "hour"),
    ],
)
@pytest.mark.parametrize("before", [0, 7])
def test_the_last_task_of_a_key_starts_when_that_was_predicted(limit: KeyLimit, before: int) -> None:
    bench = Bench(pool_of(limit))
    bench.add("t", before, tenant="a")
    bench.until(1013.0)
    bench.add("t", 35, tenant="a")
    bench.run()
    [bay] = bench.matching.bays.held()["rate"]
    assert (bay.tasks, bay.units) == (bench.matching.window.count, float(bay.tasks))
    predicted = wait_of(bay.account, bay.units, bench.now, 2.0)
    found = bench.until(1013.0 + 1.5 * predicted + 100)
    assert not bench.matching.window.count
    assert bay.units == 0
    assert predicted == pytest.approx(found[-1][0] - 1013.0, rel=0.1, abs=1.1)


def test_a_key_of_a_limit_in_flight_waits_as_long_as_its_tasks_take() -> None:
    bench = Bench(pool_of(KeyLimit("tenant", 5, "in_flight")))
    bench.add("t", 25, tenant="a")
    bench.run()
    [bay] = bench.matching.bays.held()["rate"]
    assert wait_of(bay.account, bay.units, bench.now, 2.0) == pytest.approx(8.0)
    none = bench.accounts.keyed.open(("rate", ("b",)), bench.now)
    assert wait_of(none, 1.0, bench.now, 2.0) == 0
    none.meter.set_amount(0, bench.now)
    assert wait_of(none, 1.0, bench.now, 2.0) == math.inf


def knowing(pool: Pool, **waits: float | None) -> KeyWaits:
    made = KeyWaits()
    made.follow(pool)
    made.look(Snapshot("p", 1, "h", PoolState(0.0), limits={"rate": KeyLimitView(waits=waits)}), is_new=True)
    return made


def seconds(of: KeyWaits, tenant: str, kind: str = "t", costs: dict[str, float] | None = None) -> float:
    return of.seconds(Submission(kind, b"", tenant), costs)


def test_a_tiny_amount_never_has_room() -> None:
    pool = pool_of(KeyLimit("tenant", 1e-310, "minute"))
    bench = Bench(pool)
    account = bench.accounts.keyed.open(("rate", ("a",)), bench.now)
    assert wait_of(account, 1.0, bench.now, 2.0) == math.inf
    assert seconds(knowing(pool), "a") == math.inf


def test_a_submit_knows_the_waits_of_the_snapshot_and_adds_what_came_since() -> None:
    limit = KeyLimit("tenant", 30, "minute", types=("t",), amounts={"none": 0})
    known = knowing(pool_of(limit, t=TaskType(), u=TaskType()), a=50.0, never=None)
    assert (seconds(known, "a"), seconds(known, "b"), seconds(known, "a", "u")) == (50.0, 0.0, 0.0)
    assert (seconds(known, "never"), seconds(known, "none")) == (math.inf, math.inf)
    assert seconds(known, "a", costs={"rate": 0.0}) == 0
    for _ in range(45):
        for tenant in "ab":
            known.add(Submission("t", b"", tenant), None)
    assert (seconds(known, "a"), seconds(known, "b"), seconds(known, "c")) == (140.0, 60.0, 0.0)
    known.look(None, is_new=True)
    assert seconds(known, "b") == 0


def test_a_process_remembers_no_more_keys_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_waits, "MOST", 5)
    known = knowing(pool_of(KeyLimit("tenant", 1, "minute")))
    for number in range(23):
        known.add(Submission("t", b"", f"t{number}"), None)
    assert len(known._units) <= 5
