"""What providers say is left of a limit: less counts at once, and more than the limit allows never."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from emq_scheduling.hosting.attempts import Run
from emq_scheduling.limits.accounts import Accounts
from emq_scheduling.limits.usage import SavedUse, Usage
from emq_scheduling.model import Limit, Pool, Resource, TaskType
from emq_scheduling.tasks import Task
from support.matching_bench import Bench
from support.scheduler_bench import SchedulerBench, rest

NOW = 1_700_049_600.0
MINUTE = Limit("requests", 100, "minute")
SECOND = Limit("requests", 5, "second")
DAY = Limit("requests", 1_000, "day")


def accounts(*limits: Limit, parent: tuple[Limit, ...] = ()) -> Accounts:
    resources = {"up": Resource(limits=parent), "a": Resource("up", limits), "b": Resource("up")}
    return Accounts(Pool("p", resources=resources), NOW)


def starts(of: Accounts, now: float, resource: str = "a") -> int:
    return sum(of.charge(resource, {}, now) is not None for _ in range(2_000))


def test_less_than_the_account_has_counts_at_once_and_until_the_reset() -> None:
    of = accounts(MINUTE)
    of.tell("a", "requests", 3, 20.0, NOW, None, None)
    assert starts(of, NOW) == 3
    assert of.next_at("a", {}, NOW + 1) == NOW + 20
    assert starts(of, NOW + 20) == 97, "the limit has room for the rest"


def test_the_urgent_find_room_in_what_is_left_beside_a_batch_without_end() -> None:
    takes: dict[str, dict[str, float]] = {"chat": {}, "batch": {}}
    resource = Resource(limits=(Limit("requests", 600, "minute"),), takes=takes)
    types = {"chat": TaskType(priority=0), "batch": TaskType(priority=2)}
    bench = Bench(Pool("p", resources={"a": resource}, types=types), NOW)
    waits: list[float] = []
    bench.add("batch", 2_000)
    for second in range(1, 140):
        bench.until(NOW + second)
        bench.add("chat")
        began = bench.now
        found = [at for at, start in bench.until(NOW + second + 0.5) if start.waiting.task.type == "chat"]
        waits += [at - began for at in found]
        if second == 100:
            bench.accounts.tell("a", "requests", 60, 40.0, bench.now, None, None)
    assert len(waits) == 139, "one more each second, though a batch takes what it may"
    assert max(waits) < 0.1
    assert bench.accounts.account("a").quotes["requests", "minute"].room(bench.now) < 12, "the batch takes the rest"


def test_what_is_left_counts_for_the_next_owner_of_the_pool() -> None:
    def owner(rows: dict[str, SavedUse], now: float) -> tuple[Accounts, Usage]:
        of = Accounts(Pool("p", resources={"a": Resource(limits=(MINUTE,))}), now, saves=True)
        usage = Usage(of)
        usage.restore(rows, now)
        save(usage, rows, now)
        return of, usage

    def save(usage: Usage, rows: dict[str, SavedUse], now: float) -> int:
        plan = usage.plan(now)
        usage.saved(plan)
        rows |= {name: msgspec.json.decode(msgspec.json.encode(use), type=SavedUse) for name, use in plan.items()}
        return len(plan)

    rows: dict[str, SavedUse] = {}
    first, usage = owner(rows, NOW)
    assert first.charge("a", {}, NOW + 1) is not None
    first.tell("a", "requests", 500, 40.0, NOW + 3, None, None)
    assert save(usage, rows, NOW + 3) == 0, "it says no less than what is counted"
    first.tell("a", "requests", 20, 40.0, NOW + 4, None, None)
    assert first.left("a", ("requests", "minute"), NOW + 4) == (20, NOW + 44)
    assert save(usage, rows, NOW + 4) == 1
    assert save(usage, rows, NOW + 5) == 0
    second, _ = owner(dict(rows), NOW + 6)
    told = 20 - rows["a"].limits["requests/minute"].reserve
    second.account("a").reserves["requests", "minute"].left = 100
    assert starts(second, NOW + 6) == told
    assert second.left("a", ("requests", "minute"), NOW + 6)[1] == NOW + 44
    assert second.left("a", ("requests", "minute"), NOW + 44) == (None, 0.0)
    last, _ = owner(usage.final(NOW + 7), NOW + 8)
    assert last.left("a", ("requests", "minute"), NOW + 8) == (20, NOW + 44), "an orderly end loses nothing"


def test_more_than_the_limit_allows_changes_nothing() -> None:
    of = accounts(MINUTE)
    assert starts(of, NOW) == 100
    of.tell("a", "requests", 1_000, 60.0, NOW + 1, None, None)
    assert starts(of, NOW + 1) == 0
    assert of.next_at("a", {}, NOW + 1) == NOW + 61


def test_the_latest_word_counts() -> None:
    of = accounts(MINUTE)
    of.tell("a", "requests", 0, 30.0, NOW, None, None)
    assert starts(of, NOW) == 0
    of.tell("a", "requests", 5, 30.0, NOW + 1, None, None)
    assert starts(of, NOW + 1) == 5
    of.tell("a", "requests", 0, 0.0, NOW + 2, None, None)
    assert starts(of, NOW + 2) == 95, "reset now"


def test_an_answer_that_may_be_older_than_the_latest_only_lowers_it() -> None:
    of = accounts(MINUTE)
    old = [of.charge("a", {}, NOW) for _ in range(2)]
    of.tell("a", "requests", 4, 30.0, NOW + 1, None, None)
    assert starts(of, NOW + 1) == 4
    assert old[0] is not None
    assert old[1] is not None
    old[0].tell("requests", 9, 60.0, NOW + 2, None, None)
    assert starts(of, NOW + 2) == 0
    assert of.next_at("a", {}, NOW + 2) == NOW + 31
    of.tell("a", "requests", 8, 29.0, NOW + 2, None, None)
    old[1].tell("requests", 3, 1.0, NOW + 3, None, None)
    new = of.charge("a", {}, NOW + 3)
    assert starts(of, NOW + 4) == 2, "less counts, and not for less time"
    assert new is not None
    new.tell("requests", 5, 20.0, NOW + 4, None, None)
    assert starts(of, NOW + 4) == 5, "a newer word"
    old[1].tell("requests", 1, 20.0, NOW + 40, None, None)
    assert starts(of, NOW + 40) == 1, "the words before hold no more"


def test_a_word_outlasts_a_clock_that_goes_back_a_little() -> None:
    of = accounts(MINUTE)
    of.tell("a", "requests", 1, 30.0, NOW + 0.9, None, None)
    assert starts(of, NOW + 0.4) == 1
    bucket = accounts(Limit("requests", 60, "minute", "bucket"))
    bucket.tell("a", "requests", 3, 30.0, NOW + 3, None, None)
    assert starts(bucket, NOW) == 3


def test_a_reset_counts_for_a_period_at_most() -> None:
    of = accounts(MINUTE)
    of.tell("a", "requests", 0, 1e9, NOW, None, None)
    assert of.next_at("a", {}, NOW) == NOW + 60


def test_a_bucket_fills_up_evenly_until_its_reset() -> None:
    of = accounts(Limit("requests", 60, "minute", "bucket", 30))
    of.tell("a", "requests", 0, 30.0, NOW, None, None)
    assert of.next_at("a", {}, NOW) == pytest.approx(NOW + 1)
    assert starts(of, NOW + 10.001) == 10
    assert starts(of, NOW + 15.002) == 5


def test_units_come_back_that_were_charged_after_the_word() -> None:
    of = accounts(MINUTE)
    of.tell("a", "requests", 50, 30.0, NOW, None, None)
    before = of.charge("a", {"requests": 10.0}, NOW)
    of.tell("a", "requests", 4, 30.0, NOW + 1, None, None)
    after = of.charge("a", {"requests": 4.0}, NOW + 1)
    assert before is not None
    assert after is not None
    before.undo(NOW + 2)
    assert starts(of, NOW + 2) == 0, "the provider counts it"
    after.undo(NOW + 2)
    assert starts(of, NOW + 2) == 4


def test_a_word_on_a_parents_limit_counts_for_all_below_it() -> None:
    of = accounts(SECOND, parent=(MINUTE, DAY))
    of.tell("a", "requests", 2, 20.0, NOW, "minute", None)
    assert starts(of, NOW, "b") == 2
    assert starts(of, NOW, "a") == 0
    of.tell("b", "requests", 0, 20.0, NOW + 20, "day", "up")
    assert starts(of, NOW + 20, "a") == 0


@pytest.mark.parametrize(
    ("limit", "per", "of", "text"),
    [
        ("requests", None, "up", "'a' has several limits that it may mean"),
        ("requests", "hour", None, "'a' has no limit that it may mean (requests/second of a, requests/minute of up"),
        ("tokens", None, None, "left of 'tokens': 'a' has no limit that it may mean (none of that name); name per and"),
        ("slots", None, None, "left of 'slots': 'a' has no limit"),
    ],
)
def test_a_word_that_names_no_single_limit_is_refused(limit: str, per: str, of: str, text: str) -> None:
    made = accounts(SECOND, Limit("slots", 3, "in_flight"), parent=(MINUTE, DAY))
    with pytest.raises(ValueError, match="it may mean") as caught:
        made.tell("a", limit, 1, 1.0, NOW, per, of)  # type: ignore[arg-type]
    assert text in str(caught.value)


def test_the_word_outlasts_a_change_of_the_pool_and_goes_with_its_limit() -> None:
    of = accounts(MINUTE)
    of.tell("a", "requests", 1, 30.0, NOW, None, None)
    resources = {"a": Resource(limits=(Limit("requests", 50, "minute"),))}
    of.follow(Pool("p", resources=resources), NOW)
    assert starts(of, NOW) == 1
    of.follow(Pool("p", resources={"a": Resource()}), NOW)
    of.follow(Pool("p", resources=resources), NOW)
    assert starts(of, NOW) == 49


async def test_a_performer_tells_what_is_left() -> None:
    pool = Pool("p", resources={"a": Resource(limits=(MINUTE,), takes={"t": {}})}, types={"t": TaskType()})
    bench, found = SchedulerBench(pool, NOW), list[float]()

    async def perform(_: Task, run: Run) -> None:
        found.append(bench.clock.now())
        run.left("requests", 0, reset_s=12.5)
        with pytest.raises(ValueError, match="left of 'requests': units -1 must be a finite number, 0 or more"):
            run.left("requests", -1, reset_s=1)
        with pytest.raises(ValueError, match="left of 'requests': reset_s nan must be a finite number"):
            run.left("requests", 1, reset_s=float("nan"))
        for wrong in ("12", None, 10**400):
            with pytest.raises(ValueError, match=r"^left of 'requests': units \S+ must be a finite number, 0 or more$"):
                run.left("requests", wrong, reset_s=1)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match=r"^used requests=\S+: give a finite number of units, 0 or more$"):
                run.used(requests=wrong)  # type: ignore[arg-type]

    async with bench.working():
        first = bench.clock.now()
        await bench.scheduler.perform(Task("1", "p", "t", "", None, b"", 1, 0), perform)
        second = asyncio.create_task(bench.scheduler.perform(Task("2", "p", "t", "", None, b"", 1, 0), perform))
        for seconds in (12.4, 0.2):
            await rest()
            assert found == [first]
            bench.clock.advance(seconds)
            bench.scheduler.sweep()
        await second
        assert found == [first, pytest.approx(first + 12.6)]
