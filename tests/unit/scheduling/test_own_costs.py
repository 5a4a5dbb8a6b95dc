"""Predictions count what tasks really cost, and types learn from it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import msgspec
import pytest

from emq_scheduling.choice.keeping import Keeping
from emq_scheduling.choice.matching import Matching
from emq_scheduling.choice.sums import Sum, Sums
from emq_scheduling.forecast.pacing import MOST_SHAPES, Pace, Unseen
from emq_scheduling.forecast.prediction import Predictor, forecast, predicted_waits
from emq_scheduling.forecast.what_if import changed, what_if
from emq_scheduling.hosting.attempts import Run
from emq_scheduling.hosting.estimates import MOST, ODD, PRIOR, Estimates
from emq_scheduling.hosting.viewing import Viewer
from emq_scheduling.limits.accounts import Accounts
from emq_scheduling.model import Costs, Limit, Pool, Resource, TaskType
from emq_scheduling.records.snapshot import PoolState, Snapshot, TypeCost
from emq_scheduling.tasks import Task
from support.scheduler_bench import SchedulerBench, rest

STEP_S = 0.05
TYPE_AND_TASK = [(1.0, 10.0), (10.0, 1.0)]


def pool_of(costs: float, limit: Limit | None = None, **of_type: object) -> Pool:
    """Return a pool with 100 tokens a second, and a type that says that its tasks cost so many."""
    resource = Resource(limits=(limit or Limit("tokens", 100, "second"),), takes={"work": {}}, adapts=False)
    kind = TaskType(costs={"tokens": costs}, **{"duration_s": 0.01, **of_type})  # type: ignore[arg-type]
    return Pool("p", resources={"r": resource}, types={"work": kind})


class Bench(SchedulerBench):
    """A scheduler on a manual clock; each task uses `uses` tokens, or as many as it is charged if that is None."""

    def __init__(self, pool: Pool, uses: float | None = None) -> None:
        super().__init__(pool)
        self.uses = uses
        self.fails = False
        self.starts: list[float] = []
        self._tasks: list[asyncio.Task[object]] = []
        self.viewer = Viewer(self.scheduler, "h", self.clock.now())

    @property
    def charged(self) -> list[Costs]:
        return [ended.placement.costs for ended in self.ended]

    async def _perform(self, task: Task, run: Run) -> None:
        self.starts.append(run.at)
        if self.uses is not None:
            run.used(tokens=self.uses)
        if self.fails:
            raise ValueError("planted")

    async def wait(self, count: int, costs: Costs | None = None, tenant: str = "") -> None:
        """Let so many tasks wait."""
        at = int(self.clock.now() * 1e6)
        for number in range(count):
            task = Task(f"{at}-{number}", "p", "work", tenant, None, b"", 1, at, costs=costs)
            self._tasks.append(asyncio.create_task(self.scheduler.perform(task, self._perform)))
        await asyncio.sleep(0)

    def look(self, backlog: dict[str, int] | None = None) -> Snapshot:
        return self.viewer.look(backlog or {}, self.clock.now())

    async def run(self, until: int) -> float:
        """Go on until so many tasks have started; return the seconds until the last of them."""
        began = self.clock.now()
        while len(self.starts) < until:
            self.clock.advance(STEP_S)
            self.scheduler.sweep()
            await rest()
            assert self.clock.now() < began + 1_000
        return self.starts[until - 1] - began

    async def end(self) -> None:
        self.scheduler.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def bench(pool: Pool, uses: float | None = None) -> AsyncIterator[Bench]:
    made = Bench(pool, uses)
    try:
        yield made
    finally:
        await made.end()


def near(seconds: float) -> object:
    return pytest.approx(seconds, rel=0.1)


# ---------------------------------------------------------------------------------------------- costs of their own


@pytest.mark.parametrize(("says", "cost"), TYPE_AND_TASK)
async def test_a_forecast_counts_the_costs_that_tasks_bring(says: float, cost: float) -> None:
    async with bench(pool_of(says)) as made:
        await made.wait(400, {"tokens": cost})
        told = made.look()
        await made.wait(1, {"tokens": cost})
        real_s = await made.run(401)
        assert real_s == near(4 * cost)
        assert told.types["work"].predicted_wait_s == near(real_s)
        assert forecast(made.scheduler.pool, told.state).drained_s == near(real_s)
        assert told.types["work"].costs["tokens"].waiting == pytest.approx(400 * cost)


async def test_what_if_counts_them_too() -> None:
    async with bench(pool_of(1.0)) as made:
        await made.wait(400, {"tokens": 10.0})
        pool, state = made.scheduler.pool, made.look().state
        found = what_if(pool, state, changed(pool, ["limit r tokens=200/second"]))
        assert (found.before.drained_s, found.after.drained_s) == (near(40), near(20))


async def test_tasks_with_and_without_costs_of_their_own_wait_beside_each_other() -> None:
    async with bench(pool_of(5.0)) as made:
        for _ in range(100):
            await made.wait(1, {"tokens": 19.0})
            await made.wait(3)  # a mean of 8.5
        told = made.look().types["work"].predicted_wait_s
        await made.wait(1)
        assert told == near(await made.run(401))


async def test_tasks_in_the_store_count_as_those_of_their_tenant_on_the_host() -> None:
    async with bench(pool_of(1.0)) as made:
        await made.wait(48, {"tokens": 10.0}, "large")
        await made.wait(2, {"tokens": 1.0}, "small")
        told = made.look({"p.work.large": 1_000, "p.work.small": 2_000, "p.work": 100})
        known = told.state.costs["work"]["tokens"]
        # Of those without a tenant, the host has none: they count as the latest ones, which were large.
        assert known.at_end(1.0) * 3_100 == pytest.approx(1_000 * 10 + 2_000 * 1 + 100 * 10)
        assert told.types["work"].tenants == {"small": 2_000, "large": 1_000}
        assert told.types["work"].predicted_wait_s == near(130)


async def test_tasks_that_the_host_has_not_read_yet_count_as_the_latest_ones() -> None:
    async with bench(pool_of(1.0)) as made:
        await made.wait(60, {"tokens": 10.0})
        await made.run(60)
        assert made.look({"p.work": 500}).types["work"].predicted_wait_s == near(50)


async def test_a_host_tells_nothing_of_costs_that_only_the_pool_says() -> None:
    async with bench(pool_of(10.0)) as made:
        await made.wait(30)
        await made.run(20)
        told = made.look()
        assert (told.state.costs, told.types["work"].costs) == ({}, {})


def test_units_in_flight_are_held_by_what_is_charged_and_given_back_too_late_for_a_second() -> None:
    known = {"work": {"tokens": TypeCost(used=0.1)}}

    def wait_s(limit: Limit, duration_s: float) -> float:
        pool = pool_of(10.0, limit, duration_s=duration_s)
        return predicted_waits(pool, PoolState(1_000.0, {"work": 400}, costs=known), 1_000.0)["work"]

    assert wait_s(Limit("tokens", 100, "in_flight"), 1.0) == near(40)
    assert wait_s(Limit("tokens", 100, "second"), 2.0) == near(40)
    assert wait_s(Limit("tokens", 100, "second"), 0.1) == near(4)
    assert wait_s(Limit("tokens", 1_000, "minute"), 2.0) < 1
    assert predicted_waits(pool_of(1.0), PoolState(1_000.0, {"work": 400}, costs={"gone": {}}), 1_000.0)[
        "work"
    ] == near(4)


def test_whole_tasks_of_their_own_costs_leave_a_rest_of_the_limit() -> None:
    state = PoolState(1_000.0, {"work": 40}, costs={"work": {"tokens": TypeCost(named=1.0, own=60.0)}})
    assert predicted_waits(pool_of(1.0), state, 1_000.0)["work"] == near(40)


def test_a_predictor_serves_states_with_other_costs() -> None:
    predictor = Predictor(pool_of(1.0))
    state = PoolState(1_000.0, {"work": 400})
    larger = msgspec.structs.replace(state, costs={"work": {"tokens": TypeCost(named=1.0, own=10.0)}})
    assert [predictor.waits(each, 1_000.0)["work"] for each in (state, larger, state)] == [near(4), near(40), near(4)]


def test_sums_over_waiting_tasks_are_those_of_a_recount() -> None:
    dice, sums, waiting = random.Random(7), Sums(), []
    for number in range(3_000):
        if waiting and dice.random() < 0.5:
            sums.take(waiting.pop(dice.randrange(len(waiting))))
        else:
            costs = dice.choice([None, {"a": dice.uniform(0, 3_000)}, {"a": 1e-3, "b": dice.uniform(0, 1e9)}])
            task = Task(str(number), "p", dice.choice("xy"), dice.choice("mno"), None, b"", 1, 0, costs=costs)
            sums.add(task)
            waiting.append(task)
    for kind in "xy":
        assert sums.count(kind) == sum(task.type == kind for task in waiting)
        for tenant, found in sums.tenants(kind):
            of = [task for task in waiting if (task.type, task.tenant) == (kind, tenant)]
            named = {limit: [t.costs[limit] for t in of if t.costs and limit in t.costs] for limit in "ab"}
            expected = {limit: (len(of_) / len(of), sum(of_) / len(of)) for limit, of_ in named.items() if of_}
            assert found.parts() == {limit: pytest.approx(each) for limit, each in expected.items()}
    for task in waiting:
        sums.take(task)
    assert not any(kind in sums for kind in "xy")
    one = Sum()
    for costs, tasks in (({"a": 0.1}, 1), (None, 1), ({"a": 0.1}, -1)):
        one.add(costs, tasks)
    assert (one.count, one.parts()) == (1, {}), "a limit that no task names any more is forgotten"


# ---------------------------------------------------------------------------------------------------- what is learned


@pytest.mark.parametrize(("learns", "says", "uses", "charged"), [
    ("up", 1.0, 5.0, 5.0),
    ("up", 5.0, 1.0, 5.0),
    ("both", 5.0, 1.0, 1.0),
    ("no", 1.0, 5.0, 1.0),
    ("up", 1.0, 40.0, 1.0 * MOST),
    ("both", 40.0, 1.0, 40.0 / MOST),
])  # fmt: skip
async def test_a_type_learns_from_what_its_tasks_use(learns: str, says: float, uses: float, charged: float) -> None:
    async with bench(pool_of(says, learns=learns), uses) as made:
        await made.wait(1_000)
        await made.run(400)
        assert made.charged[0] == {"tokens": says}
        assert made.charged[-1]["tokens"] == near(charged)
        told = made.look().types["work"]
        assert told.costs["tokens"].said == says
        assert told.costs["tokens"].charged == near(charged)
        assert told.costs["tokens"].used == near(uses)
        left = 1_000 - len(made.starts)
        assert told.costs["tokens"].waiting == near(left * uses)
        real_s = await made.run(1_000)
        assert told.predicted_wait_s == pytest.approx(real_s, rel=0.1, abs=1.0)


async def test_reports_of_tasks_with_costs_of_their_own_teach_the_type_nothing_but_forecasts() -> None:
    async with bench(pool_of(2.0), 5.0) as made:
        await made.wait(500, {"tokens": 10.0})
        await made.run(250)
        told = made.look().types["work"]
        assert set(map(str, made.charged)) == {"{'tokens': 10.0}"}
        assert (told.costs["tokens"].charged, told.costs["tokens"].used) == (2.0, near(5))
        assert told.predicted_wait_s == pytest.approx(await made.run(500), rel=0.1, abs=1.0)


async def test_an_estimate_stays_below_what_a_limit_allows_at_all() -> None:
    async with bench(pool_of(30.0), 290.0) as made:
        await made.wait(60)
        await made.run(60)
        assert made.charged[-1] == {"tokens": 100.0}, "more would never start"


async def test_a_changed_type_learns_from_the_beginning_and_no_longer_if_it_must_not() -> None:
    async with bench(pool_of(1.0), 4.0) as made:
        await made.wait(400)
        await made.run(200)
        assert made.charged[-1]["tokens"] > 3
        made.scheduler.follow(pool_of(1.0, learns="no"), 2)
        made.scheduler.sweep()
        started = len(made.starts)
        await made.run(started + 50)
        assert made.charged[-1] == {"tokens": 1.0}
        made.scheduler.follow(pool_of(2.0), 3)
        assert made.look().types["work"].costs == {}


async def test_a_change_of_another_part_of_the_pool_keeps_what_was_learned() -> None:
    async with bench(pool_of(1.0), 4.0) as made:
        await made.wait(400)
        await made.run(200)
        now = msgspec.structs.replace(made.scheduler.pool, zone="Europe/Berlin")
        made.scheduler.follow(now, 2)
        assert made.scheduler.matching.costing.of_type("work", "r")["tokens"] == near(4)


async def test_a_new_host_begins_with_what_the_former_one_knew() -> None:
    pool = pool_of(2.0)
    async with bench(pool, 6.0) as former, bench(pool, 6.0) as made:
        for number in range(60):
            await former.wait(1, {"tokens": 4.0} if number % 2 else None)
        await former.run(60)
        told = former.look({"p.work": 400})
        made.scheduler.estimates.restore({**told.state.costs, "gone": {"tokens": TypeCost()}})
        made.scheduler.sweep()
        assert made.scheduler.matching.costing.of_type("work", "r")["tokens"] == near(5)  # 30 of 6, 10 of 2
        now = made.look({"p.work": 400})
        assert set(now.state.costs) == {"work"}
        for field in TypeCost.__struct_fields__:
            before, after = (getattr(each.state.costs["work"]["tokens"], field) for each in (told, now))
            assert after == near(before), field
        assert now.types["work"].predicted_wait_s == near(told.types["work"].predicted_wait_s or 0.0)


def test_limits_that_are_gone_are_forgotten() -> None:
    pool = pool_of(2.0)
    estimates = Estimates(pool)
    estimates.started("work", {"tokens": 5.0}, ["tokens"])
    estimates.ended("work", "r", {"tokens": 5.0}, {"tokens": 4.0})
    other = Resource(limits=(Limit("calls", 1, "second"),), takes={"work": {}})
    estimates.follow(msgspec.structs.replace(pool, resources={"r": other}))
    assert estimates.costs("work", {"": 3}, Matching(pool, Keeping(pool, Accounts(pool, 0.0), 0.0))) == {}


async def test_failed_attempts_teach_nothing() -> None:
    async with bench(pool_of(10.0, learns="both", max_attempts=1), 0.0) as made:
        made.fails = True
        await made.wait(60)
        await made.run(60)
        assert made.charged[-1] == {"tokens": 10.0}


def test_no_report_moves_an_estimate_far_or_makes_it_grow_without_limit() -> None:
    estimates = Estimates(pool_of(10.0, learns="both"))
    for used in (1e308, 0.0, 1e308):
        estimates.ended("work", "r", None, {"tokens": used, "unknown": 5.0})
    assert estimates.factors("work") == {"tokens": MOST}
    for _ in range(1_000):
        estimates.ended("work", "r", None, {"tokens": 0.0})
    assert estimates.factors("work") == {"tokens": 1 / MOST}
    estimates.ended("gone", "r", None, {"tokens": 1.0})
    estimates.ended("work", "gone", None, {"tokens": 1.0})
    assert set(estimates._used) == {"work"}
    assert set(estimates._used["work"]) == {("tokens", False)}


def test_one_odd_task_moves_an_estimate_by_a_tenth_of_its_oddity_at_most() -> None:
    estimates = Estimates(pool_of(10.0))
    estimates.ended("work", "r", None, {"tokens": 20.0})
    assert estimates.factors("work")["tokens"] < 1.1
    odd = Estimates(pool_of(10.0))
    odd.ended("work", "r", None, {"tokens": 1e9})
    assert odd.costs("work", {}, Matching(pool_of(10.0), Keeping(pool_of(10.0), Accounts(pool_of(10.0), 0.0), 0.0)))[
        "tokens"
    ].used == pytest.approx((PRIOR + ODD) / (PRIOR + 1))


# ------------------------------------------------------------------------------------------------------------- paces


@pytest.mark.parametrize(("says", "cost"), TYPE_AND_TASK)
def test_tasks_that_no_host_has_seen_put_others_off_by_their_own_costs(says: float, cost: float) -> None:
    unseen = Unseen()
    unseen.follow(pool_of(says))
    for _ in range(400):
        unseen.add("work", {"tokens": cost})
    assert unseen.seconds("work") == pytest.approx(4 * cost)
    unseen.look({"work": {"tokens": TypeCost(own_used=0.5, used=3.0)}}, is_new=False)
    unseen.add("work", None)
    unseen.add("work", {"tokens": cost})
    assert unseen.seconds("work") == pytest.approx(4 * cost + 3 * says / 100 + cost * 0.5 / 100)
    assert unseen.count("work") == 402
    unseen.look({}, is_new=True)
    assert (unseen.seconds("work"), unseen.count("work")) == (0.0, 0)


def test_a_pace_of_many_different_resources_looks_at_some_of_them() -> None:
    resources = {
        f"r{n}": Resource(limits=(Limit("tokens", 100 + n, "second"),), takes={"work": {}}) for n in range(1_000)
    }
    pool = Pool("p", resources=resources, types={"work": TaskType(costs={"tokens": 10.0})})
    pace = Pace(pool, "work")
    assert len(pace._shapes) <= MOST_SHAPES
    assert pace.per_s() == near(sum(100 + n for n in range(1_000)) / 10)
    none = Pace(Pool("p", types={"work": TaskType()}), "work")
    assert (none.per_s(), none.is_able) == (0, False)


def test_one_resource_that_can_start_tasks_among_many_that_cannot_is_found() -> None:
    amounts = {f"r{n}": (Limit("calls", n, "minute"), Limit("tokens", 0, "second")) for n in range(1, 100)}
    amounts["able"] = (Limit("calls", 60, "minute"), Limit("tokens", 5, "second"))
    resources = {name: Resource(limits=limits, takes={"work": {}}) for name, limits in amounts.items()}
    pace = Pace(Pool("p", resources=resources, types={"work": TaskType()}), "work")
    assert (pace.per_s(), pace.is_able) == (1.0, True)


def test_a_pace_knows_how_many_times_as_fast_cheaper_tasks_start() -> None:
    pace = Pace(pool_of(100.0), "work")
    cheaper = {"tokens": TypeCost(named=0.5, own=1.0, used=0.1)}  # 6 on average
    assert [pace.gain(known) for known in ({}, cheaper, {"tokens": TypeCost(used=5.0)})] == [1.0, 16.0, 1.0]
    assert pace.gain({"tokens": TypeCost(named=1.0)}) < 2e6, "although nothing limits tasks that cost nothing"


async def test_a_host_knows_the_most_by_which_tasks_start_faster_until_the_pool_changes() -> None:
    async with bench(pool_of(100.0)) as made:
        await made.wait(20, {"tokens": 5.0})
        made.look()
        await made.run(20)
        await made.wait(50, {"tokens": 90.0})
        made.look()
        assert made.viewer.gains == {"work": 16.0}
        made.scheduler.follow(pool_of(1.0), 2)
        made.look()
        assert made.viewer.gains == {}
