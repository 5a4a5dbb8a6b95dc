"""Large tasks beside small ones of a lower priority, while more urgent tasks spread them over time."""

from __future__ import annotations

import heapq
import random
from collections import Counter

import pytest

from bench.scheduling.replay import Replay
from emq_scheduling.choice.matching import Start
from emq_scheduling.limits.accounts import First
from emq_scheduling.model import Costs, Limit, Pool, Resource, TaskType
from emq_scheduling.pools import rules
from support.matching_bench import Bench


def test_small_tasks_do_not_take_the_room_that_a_larger_more_urgent_one_waits_for() -> None:
    types = {
        "code": TaskType(priority=0),
        "large": TaskType(priority=1, costs={"requests": 3.0}),
        "small": TaskType(priority=2),
    }
    resource = Resource(limits=(Limit("requests", 30, "second"),), takes={kind: {} for kind in types})
    pool = Pool("p", resources={"r": resource}, types=types)
    rules.check(pool)
    replay = Replay(pool, {"code": 40, "large": 300, "small": 3_000}, {"code": 3.0}, seed=2)
    replay.run(30.0)
    units: Counter[str] = Counter()
    for start in replay.starts():
        if start.at >= 1e9 + 3:
            units[start.kind] += 3 if start.kind == "large" else 1
    # 30 units a second less 3 for codes: 27 for large tasks, and what these leave of a second.
    assert units["large"] >= 0.8 * 27 * 27
    assert units["small"] <= 0.15 * 27 * 30
    assert units["large"] + units["small"] + units["code"] >= 0.98 * 27 * 30


class Flow:
    """Small tasks without end on one resource with ten places, and a large one from time to time."""

    def __init__(self, large: TaskType, small: TaskType) -> None:
        limits = (Limit("slots", 10, "in_flight"),)
        resource = Resource(limits=limits, takes={"large": {"slots": 8.0}, "small": {}})
        self.bench = Bench(Pool("p", resources={"r": resource}, types={"large": large, "small": small}))
        self.waits: list[float] = []
        self.most = 0.0
        self._random = random.Random(3)
        self._ends: list[tuple[float, int, Start]] = []

    def run(self, until: float, large_every_s: float, took_s: list[float]) -> None:
        """Go on until then; a small task takes one of these times."""
        bench, next_large = self.bench, self.bench.now + 1.0
        while bench.now < until:
            if len(bench.matching.window) < 100:
                bench.add("small", 20)
            if bench.now >= next_large:
                bench.add("large", 1)
                next_large += large_every_s
            for start in bench.run():
                self._started(start, took_s)
            bench.now = max(min(bench.matching.next_at(bench.now), self._ends[0][0], next_large), bench.now + 1e-6)
            while self._ends and self._ends[0][0] <= bench.now:
                ended = heapq.heappop(self._ends)[2]
                bench.end(ended)

    def _started(self, start: Start, took_s: list[float]) -> None:
        ends_at = self.bench.now + (5.0 if start.waiting.task.type == "large" else self._random.choice(took_s))
        heapq.heappush(self._ends, (ends_at, next(self.bench.ids), start))
        self.most = max(self.most, self.bench.accounts.used(self.bench.now)["r"]["slots/in_flight"])
        if start.waiting.task.type == "large":
            self.waits.append(self.bench.now - start.waiting.task.submitted_us / 1e6)


@pytest.mark.parametrize("duration_s", [0.2, 3.0])
def test_an_urgent_large_task_waits_no_longer_than_what_runs(duration_s: float) -> None:
    flow = Flow(TaskType(priority=0, duration_s=5.0), TaskType(priority=1, duration_s=duration_s))
    flow.run(1600.0, 30.0, [0.1, 1.0, 10.0, 20.0])
    assert len(flow.waits) >= 19
    assert max(flow.waits) <= 30.0, "what runs ends within 20 s, and it was expected to end earlier"
    assert flow.most <= 10.0


def test_a_large_task_starts_in_its_turn_among_small_ones_of_its_priority() -> None:
    flow = Flow(TaskType(duration_s=5.0), TaskType(duration_s=3.0))
    flow.run(1600.0, 30.0, [0.1, 1.0, 10.0, 20.0])
    assert len(flow.waits) >= 14


def test_small_tasks_start_behind_any_number_of_large_ones_that_fit_elsewhere_only() -> None:
    resources = {
        "wide": Resource(limits=(Limit("tokens", 100, "second"),), takes={"job": {}}),
        "narrow": Resource(limits=(Limit("tokens", 10, "second"),), takes={"job": {}}),
    }
    bench = Bench(Pool("p", resources=resources, types={"job": TaskType()}))
    bench.add("job", 40, costs={"tokens": 50.0})
    bench.add("job", 200, costs={"tokens": 1.0})
    counts = Counter(start.resource for _, start in bench.until(1010.0))
    assert counts == {"wide": 20, "narrow": 100}


def test_what_is_left_of_a_quota_goes_to_small_tasks_until_there_is_more() -> None:
    limits = (Limit("tokens", 120, "day"), Limit("requests", 2, "second"))
    pool = Pool("p", resources={"r": Resource(limits=limits, takes={"job": {}})}, types={"job": TaskType()})
    bench = Bench(pool)
    bench.add("job", 20, costs={"tokens": 50.0})
    bench.add("job", 200)
    starts = [start.costs["tokens"] for _, start in bench.until(1060.0)]
    assert starts == [50.0, 50.0, *[1.0] * 20]


def test_a_resource_does_not_sleep_on_for_a_task_that_has_started_elsewhere() -> None:
    limits = (Limit("tokens", 100, "minute"),)
    resources = {name: Resource(limits=limits, takes={"job": {}}) for name in ("a", "b")}
    bench = Bench(Pool("p", resources=resources, types={"job": TaskType()}), 1020.0)
    bench.matching.lineups.close("b", 1030.0)
    bench.add("job", 1, costs={"tokens": 50.0})
    assert [start.resource for start in bench.run()] == ["a"]
    bench.now = 1025.0
    bench.add("job", 1, costs={"tokens": 60.0})
    bench.add("job", 1, costs={"tokens": 45.0})
    assert bench.run() == [], "they would delay the large one"
    at = {start.costs["tokens"]: (at, start.resource) for at, start in bench.until(1031.0)}
    assert at == {60.0: (pytest.approx(1030.0, abs=0.1), "b"), 45.0: (pytest.approx(1030.0, abs=0.1), "a")}


@pytest.mark.parametrize("seed", range(4))
def test_resources_with_mixed_costs_idle_no_longer_than_a_tenth_of_a_second(seed: int) -> None:
    rng = random.Random(seed)
    types = {"call": TaskType(), "job": TaskType(), "bulk": TaskType()}
    resources = {"all": Resource(limits=(Limit("tokens", 3000, "second"),))}
    for name in ("a", "b", "c", "d"):
        limits = (Limit("requests", rng.randint(3, 20), "second"), Limit("tokens", rng.randint(100, 1000), "second"))
        resources[name] = Resource("all", limits, {key: {"tokens": float(rng.randint(1, 30))} for key in types})
    bench = Bench(Pool("p", resources=resources, types=types), 1000.3, seed)
    idle_since: dict[str, float] = {}
    counts: Counter[float | None] = Counter()
    looks_at = 1001.0
    while bench.now < 1006.0:
        if len(bench.matching.window) < 100 and rng.random() < 0.3:
            for _ in range(rng.randint(1, 20)):
                own = {"tokens": rng.choice([1.0, 5.0, 20.0, 90.0])} if rng.random() < 0.5 else None
                bench.add(rng.choice(list(types)), costs=own)
        if bench.now >= looks_at:
            bench.matching.lineups.look_again(bench.now)
            looks_at += 1.0
        for start in bench.run():
            counts[None if start.waiting.costs is None else start.costs["tokens"]] += 1
        idle_since = {name: idle_since.get(name, bench.now) for name in _idle(bench)}
        assert all(bench.now - since <= 0.1 + 1e-6 for since in idle_since.values()), (idle_since, bench.now)
        bench.now = max(min(bench.matching.next_at(bench.now), bench.now + 0.05 * rng.random()), bench.now + 1e-6)
    assert set(counts) == {None, 1.0, 5.0, 20.0, 90.0}


def _idle(bench: Bench) -> list[str]:
    """Return the resources that could start a waiting task now without delaying those that are next there."""
    found = []
    for name in ("a", "b", "c", "d"):
        wants = {number: sleep.costs for number, sleep in bench.matching._seats[name].asleep.items()}
        for waiting in bench.matching.window.all():
            costs = bench.pool.costs(waiting.task.type, name) | (waiting.costs or {})
            if not bench.keeping.fits(name, costs, bench.now, bench.matching.window.standing(waiting)):
                continue
            if not any(number <= waiting.level and _delays(bench, name, costs, wants[number]) for number in wants):
                found.append(name)
                break
    return found


def _delays(bench: Bench, name: str, costs: Costs, wanted: Costs) -> bool:
    now, expected_at = bench.now, bench.accounts.expected_at
    return expected_at(name, wanted, now, First(name, costs)) > expected_at(name, wanted, now)
