"""What `submit` refuses, and what it knows of a pool."""

from __future__ import annotations

import asyncio
import datetime
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

import emq
from emq.runtime import errors
from emq_scheduling import (
    Hours,
    Limit,
    Pool,
    Receipt,
    Resource,
    Run,
    Scheduling,
    Submission,
    Task,
    TaskType,
    submitting,
)

POOL = Pool(
    "p",
    types={"quick": TaskType(longest_wait_s=3, duration_s=0.05), "office": TaskType(hours=(Hours("08:00", "18:00"),))},
    resources={"r": Resource(limits=(Limit("requests", 20, "second"),), takes={"quick": {}, "office": {}})},
)


@pytest.fixture
async def scheduling(tmp_path: Path) -> AsyncIterator[Scheduling]:
    """An app with a pool that a host schedules."""
    app = emq.App(f"sqlite:///{tmp_path}/emq.db")
    made = Scheduling(app)

    @made.performer("p")
    async def perform(task: Task, run: Run) -> None:
        await asyncio.sleep(0.01)

    async with app:
        await made.pools.put(POOL)
        async with app.running():
            yield made


async def until_seen(scheduling: Scheduling) -> None:
    while await scheduling.snapshot("p") is None:
        await asyncio.sleep(0.05)


async def test_a_batch_counts_its_own_tasks(scheduling: Scheduling) -> None:
    await until_seen(scheduling)
    outcomes = await scheduling.submit_many("p", [Submission("quick", b"x") for _ in range(300)])
    kinds = Counter(type(outcome) for outcome in outcomes)
    assert 40 <= kinds[Receipt] <= 80  # what 20 a second start in 3 s
    assert kinds[errors.TaskRefused] == 300 - kinds[Receipt]
    accepted = [outcome for outcome in outcomes if isinstance(outcome, Receipt)]
    ended = await scheduling.result("p", accepted[-1].id)
    assert ended.attempts[-1].wait_s < 4.0


async def test_a_submit_after_a_pause_knows_the_pool_of_now(
    scheduling: Scheduling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submitting, "REFRESH_S", 0.05)
    monkeypatch.setattr(submitting, "OLD_S", 0.05)
    await scheduling.submit("p", "quick", b"x")
    await scheduling.pools.put(msgspec.structs.replace(POOL, types={**POOL.types, "new": TaskType()}))
    await asyncio.sleep(0.1)
    with pytest.raises(errors.TaskRefused, match="no resource takes it"):
        await scheduling.submit("p", "new", b"x")
    await scheduling.pools.delete("p")
    await asyncio.sleep(0.1)
    with pytest.raises(errors.UnknownPool):
        await scheduling.submit("p", "quick", b"x")


async def test_a_type_that_was_just_added_is_known(scheduling: Scheduling) -> None:
    await scheduling.submit("p", "quick", b"x")
    await asyncio.sleep(submitting.ADDED_S)
    resource = msgspec.structs.replace(POOL.resources["r"], takes={**POOL.resources["r"].takes, "new": {}})
    types = {**POOL.types, "new": TaskType()}
    await scheduling.pools.put(msgspec.structs.replace(POOL, types=types, resources={"r": resource}))
    receipt = await scheduling.submit("p", "new", b"x")
    assert (await scheduling.result("p", receipt.id)).state == "done"


async def test_a_deadline_is_held_against_the_hours_of_the_recipients_zone(scheduling: Scheduling) -> None:
    hour = datetime.datetime.now(datetime.UTC).hour
    here = Hours(f"{(hour - 2) % 24:02}:00", f"{(hour + 3) % 24:02}:00")  # now in UTC, at night on the other side
    there = Hours(f"{(hour + 10) % 24:02}:00", f"{(hour + 15) % 24:02}:00")
    types = {"here": TaskType(hours=(here,), duration_s=0.05), "there": TaskType(hours=(there,), duration_s=0.05)}
    resources = {"r": Resource(limits=(Limit("requests", 20, "second"),), takes={"here": {}, "there": {}})}
    await scheduling.pools.put(Pool("p", types=types, resources=resources))
    while (seen := await scheduling.snapshot("p")) is None or "there" not in seen.types:
        await asyncio.sleep(0.05)
    for kind, zone, other in (("here", "UTC", "Etc/GMT-12"), ("there", "Etc/GMT-12", "UTC")):
        receipt = await scheduling.submit("p", kind, b"x", zone=zone, deadline_s=60)
        assert (receipt.wait_s or 0.0) < 5
        assert (await scheduling.result("p", receipt.id)).state == "done"
        with pytest.raises(errors.TaskRefused, match=r"would start in about [\d.]+ h and take"):
            await scheduling.submit("p", kind, b"x", zone=other, deadline_s=60)
        waits = await scheduling.submit("p", kind, b"x", zone=other)
        assert waits.wait_s is not None
        assert waits.wait_s > 3600


async def test_a_task_that_expires_before_its_hours_begin_is_refused(scheduling: Scheduling) -> None:
    hour = datetime.datetime.now(datetime.UTC).hour
    hours = (Hours(f"{(hour + 10) % 24:02}:00", f"{(hour + 15) % 24:02}:00"),)
    types = {"brief": TaskType(hours=hours, ttl_s=3600), "patient": TaskType(hours=hours, ttl_s=86_400)}
    resources = {"r": Resource(limits=(Limit("requests", 20, "second"),), takes={"brief": {}, "patient": {}})}
    await scheduling.pools.put(Pool("p", types=types, resources=resources))
    await scheduling.submit("p", "patient", b"x")
    with pytest.raises(
        errors.TaskRefused, match=r"hours begin in [\d.]+ h, and a task submitted now expires in 60 min"
    ):
        await scheduling.submit("p", "brief", b"x")


async def test_a_task_that_its_deadline_will_raise_is_not_refused_for_what_waits_before_it(
    scheduling: Scheduling,
) -> None:
    types = {
        "flood": TaskType(priority=2, duration_s=0.05),
        "raised": TaskType(priority=5, near_priority=0, duration_s=0.05),
        "plain": TaskType(priority=5, duration_s=0.05),
    }
    resources = {"r": Resource(limits=(Limit("requests", 20, "second"),), takes={name: {} for name in types})}
    await scheduling.pools.put(Pool("p", types=types, resources=resources))
    await scheduling.submit_many("p", [Submission("flood", b"x") for _ in range(2000)])
    while (seen := await scheduling.snapshot("p")) is None or seen.state.waiting.get("flood", 0) < 1500:
        await asyncio.sleep(0.05)
    plain = Submission("plain", b"x", deadline_s=6)
    while not isinstance((await scheduling.submit_many("p", [plain]))[0], errors.TaskRefused):
        await asyncio.sleep(0.2)  # until this process has read what the host tells
    receipt = await scheduling.submit("p", "raised", b"x", deadline_s=6)
    assert receipt.wait_s is not None
    assert receipt.wait_s < 6
    ended = await scheduling.result("p", receipt.id)
    assert ended.attempts[-1].wait_s < 6
