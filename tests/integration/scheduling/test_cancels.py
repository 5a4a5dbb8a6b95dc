"""Cancels of tasks: none is lost, and cancelled tasks hold up no others, however many there are."""

from __future__ import annotations

import asyncio
import functools
import time
from pathlib import Path

import pytest

import emq
from emq.database import Database
from emq.database.environment_time import EnvironmentTime
from emq_scheduling import Limit, Pool, Resource, Run, Scheduling, Submission, Task, TaskType
from emq_scheduling.hosting import pool_host
from emq_scheduling.records import cancels as cancels_module
from emq_scheduling.records.cancels import MOST, OVERLAP_US, CancelReader, Cancels
from emq_scheduling.records.records import Records
from emq_scheduling.submission import Receipt
from support.waiting import until

NOW_US = 1_700_000_000_000_000


class Owner:
    """The owner of pool "sms", as far as cancels go."""

    def __init__(self, cancels: Cancels, most: int = MOST) -> None:
        self.reader = CancelReader(cancels, "sms", most)
        self.concerns = self.reader.remembered.concerns

    async def heard(self) -> dict[str, int]:
        return {task: at_us async for page in self.reader.new() for task, at_us in page.items()}


@pytest.fixture
def now(database: Database, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The database's clock, in microseconds."""
    now = [NOW_US]
    monkeypatch.setattr(database, "clock_us", lambda _: now[0])
    return now


async def test_the_owner_reads_each_request_to_cancel_once(database: Database, environment: str) -> None:
    cancels = Cancels(database, environment)
    await cancels.ask("sms", ["a", "b"])
    await cancels.ask("voice", ["x"])
    owner = Owner(cancels)
    await owner.reader.begin()
    assert [task for task in "abx" if owner.concerns(task, 0)] == ["a", "b"]
    assert not await owner.heard()
    await cancels.ask("sms", ["c", "c"])
    assert list(await owner.heard()) == ["c"]
    assert not await owner.heard()


async def test_who_asks_again_means_tasks_that_came_meanwhile(
    database: Database, environment: str, now: list[int]
) -> None:
    cancels = Cancels(database, environment)
    await cancels.ask("sms", ["a"])
    owner = Owner(cancels)
    await owner.reader.begin()
    assert (owner.concerns("a", NOW_US), owner.concerns("a", NOW_US + 30_000_000)) == (True, False)
    now[0] += 60_000_000
    await cancels.ask("sms", ["a"])
    assert await owner.heard() == {"a": NOW_US + 60_000_000}
    assert owner.concerns("a", NOW_US + 30_000_000)


async def test_a_request_that_is_committed_late_is_not_passed_over(
    database: Database, environment: str, now: list[int]
) -> None:
    cancels = Cancels(database, environment)
    await cancels.ask("sms", ["first"])
    owner = Owner(cancels)
    await owner.reader.begin()
    now[0] -= OVERLAP_US // 2
    await cancels.ask("sms", ["late"])
    assert list(await owner.heard()) == ["late"]


async def test_a_cancel_is_heard_after_the_databases_clock_was_set_back(
    database: Database, environment: str, now: list[int]
) -> None:
    cancels = Cancels(database, environment)
    await EnvironmentTime(database, environment).ask(lambda: 0, True)
    await cancels.ask("sms", ["first"])
    owner = Owner(cancels)
    await owner.reader.begin()
    now[0] -= 3_600_000_000
    await cancels.ask("sms", ["second"])
    assert list(await owner.heard()) == ["second"]
    assert owner.concerns("second", NOW_US), "the time of tasks does not go back either"


@pytest.mark.parametrize("comes", ["before", "later"])
async def test_no_cancel_is_lost_however_many_there_are(
    database: Database, environment: str, monkeypatch: pytest.MonkeyPatch, now: list[int], comes: str
) -> None:
    monkeypatch.setattr(cancels_module, "PAGE", 7)
    cancels = Cancels(database, environment)
    asked, owner = [f"t{number:02}" for number in range(50)], Owner(cancels, most=20)
    if comes == "later":
        await owner.reader.begin()
    for start in (0, 25):  # many at the same time
        await cancels.ask("sms", asked[start : start + 25])
        now[0] += 20_000_000
    if comes == "before":
        await owner.reader.begin()
    else:
        assert list(await owner.heard()) == asked
    assert [task for task in asked if owner.concerns(task, NOW_US)] == asked[30:]
    remembered = owner.reader.remembered
    assert remembered.may_have_forgotten(NOW_US)
    assert not remembered.may_have_forgotten(now[0]), "a task that came after all forgotten ones need not be looked up"
    looks = [owner.reader.concerns(task, NOW_US) for task in ["other", *asked]]
    assert await asyncio.gather(*looks) == [False, *[True] * 50]
    assert not await owner.reader.concerns("t00", now[0] + 1), "the task of this id that came later is another one"


# -------------------------------------------------------------------------------------------------------- whole hosts


class Place:
    """An app that can be a host of the pool "p", and gets replies."""

    def __init__(self, directory: Path) -> None:
        self.app = emq.App(f"sqlite:///{directory}/emq.db")
        self.scheduling = Scheduling(self.app)
        self.began: list[str] = []
        self.replied: dict[str, str] = {}

        @self.scheduling.performer("p")
        async def perform(task: Task, run: Run) -> None:
            self.began.append(task.id)

        @self.app.handler("replies")
        async def note(body: dict) -> None:  # type: ignore[type-arg]
            self.replied[body["task"]] = body["outcome"]

    async def prepare(self) -> None:
        await self.app.create_topic("replies", 1000)
        resource = Resource(limits=(Limit("requests", 50, "second"),), takes={"t": {}})
        await self.scheduling.pools.put(Pool("p", resources={"r": resource}, types={"t": TaskType()}))

    async def submit(self, count: int) -> list[str]:
        found = await self.scheduling.submit_many("p", [Submission("t", b"", reply_to="replies")] * count)
        return [each.id for each in found if isinstance(each, Receipt)]

    async def outcomes(self) -> dict[str, int]:
        return await Records(self.app.database, "online").outcomes("p")


async def test_a_fresh_task_does_not_wait_for_thousands_of_cancelled_ones(tmp_path: Path) -> None:
    made, count = Place(tmp_path), 4_000
    async with made.app:
        await made.prepare()
        tasks = await made.submit(count)
        await made.scheduling.cancel("p", *tasks)
        begun = time.monotonic()
        async with made.app.running():
            [fresh] = await made.submit(1)
            await until(lambda: fresh in made.replied, 60)
            assert time.monotonic() - begun < 15, "the quota of their topic alone would take 40 s"
            await until(lambda: len(made.replied) == count + 1, 60)
        assert made.began == [fresh]
        assert await made.outcomes() == {"cancelled": count, "done": 1}
        assert {made.replied[task] for task in tasks} == {"cancelled"}
        assert [letter.id async for letter in made.app.dead_letters("p.t")] == []


async def test_tasks_whose_cancels_were_forgotten_do_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_host, "CancelReader", functools.partial(CancelReader, most=10))
    made = Place(tmp_path)
    async with made.app:
        await made.prepare()
        tasks = await made.submit(60)
        for start in (0, 30):
            await made.scheduling.cancel("p", *tasks[start : start + 20])
        async with made.app.running():
            await until(lambda: len(made.replied) == 60, 60)
        assert sorted(made.began) == sorted([*tasks[20:30], *tasks[50:]])
        assert await made.outcomes() == {"cancelled": 40, "done": 20}
