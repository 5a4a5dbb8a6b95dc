"""The status of tasks that wait: seen at once, whatever waits before them, and at a cost that has a bound."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import emq
from emq.runtime import errors
from emq_scheduling import administering, finding
from emq_scheduling.model import Hours, Limit, Pool, Resource, TaskType
from emq_scheduling.records.ends import End, EndLog
from emq_scheduling.scheduling import Scheduling
from emq_scheduling.submission import Receipt, Submission


def closed_now() -> Hours:
    """Hours that began an hour ago and ended half an hour ago, so that nothing starts for most of a day."""
    now = datetime.datetime.now(datetime.UTC)
    begin, end = (now - datetime.timedelta(minutes=minutes) for minutes in (60, 30))
    return Hours(f"{begin:%H:%M}", f"{end:%H:%M}")


@pytest.fixture(params=["memory", "sqlite"])
async def scheduling(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scheduling]:
    app = emq.App("memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/emq.db")
    made = Scheduling(app)
    resource = Resource(limits=(Limit("tokens", 100, "minute"),), takes={"t": {}, "u": {}, "h": {}})
    types = {"t": TaskType(), "u": TaskType(), "h": TaskType(hours=(closed_now(),))}
    async with app:
        await made.pools.put(Pool("p", resources={"r": resource}, types=types))
        yield made


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups have forgotten the ids, as they do after ten minutes."""

    async def none(*_: Any) -> bool:
        return False

    monkeypatch.setattr(finding, "is_remembered", none)


async def fill(scheduling: Scheduling, count: int, **fields: Any) -> None:
    tasks = [Submission("t", b"", id=f"other-{n}", **fields) for n in range(count)]
    assert all(isinstance(each, Receipt) for each in await scheduling.submit_many("p", tasks))


@pytest.mark.parametrize("tenant", ["", "shop"])
@pytest.mark.parametrize("kind", ["t", "h"])
@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("is_told", [True, False])
async def test_a_task_that_was_just_submitted_waits(
    scheduling: Scheduling, tenant: str, kind: str, key: str | None, is_told: bool
) -> None:
    task = (await scheduling.submit("p", kind, b"", tenant=tenant, key=key)).id
    hints = {"task_type": kind, "tenant": tenant} if is_told else {}
    status = await scheduling.status("p", task, **hints)
    assert (status.task, status.state, status.attempts, status.cancel_asked) == (task, "waiting", (), False)
    await scheduling.cancel("p", task)
    status = await scheduling.status("p", task, **hints)
    assert (status.state, status.cancel_asked) == ("waiting", True)


async def test_it_is_seen_behind_any_number_of_others(scheduling: Scheduling, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(scheduling, 300)
    task = (await scheduling.submit("p", "t", b"")).id
    monkeypatch.setattr(finding, "READS", 0)
    assert (await scheduling.status("p", task)).state == "waiting"


async def test_an_earlier_task_is_seen_among_the_first(
    scheduling: Scheduling, monkeypatch: pytest.MonkeyPatch, forgotten: None
) -> None:
    monkeypatch.setattr(finding, "PAGE", 10)
    first = (await scheduling.submit("p", "t", b"", key="k")).id
    await fill(scheduling, 150, key="k")
    last = (await scheduling.submit("p", "t", b"", key="k")).id
    assert (await scheduling.status("p", first)).state == "waiting"
    where = (await finding.candidates(scheduling._app, "p")).topics
    assert await finding.look(scheduling._app, where, first) == finding.Waits("p.t", ahead=0)
    assert await finding.look(scheduling._app, where, "other-7") == finding.Waits("p.t", ahead=8)
    with pytest.raises(errors.UnknownTask, match="waits behind many others"):
        await scheduling.status("p", last)


async def test_an_earlier_task_that_waits_for_its_hours_is_seen(scheduling: Scheduling, forgotten: None) -> None:
    task = (await scheduling.submit("p", "h", b"", tenant="shop")).id
    assert (await scheduling.status("p", task)).state == "waiting"
    found = await finding.look(scheduling._app, (await finding.candidates(scheduling._app, "p")).topics, task)
    assert found is not None
    assert found.topic == "p.h.shop"
    assert found.due_ms is not None


@pytest.mark.parametrize("kind", ["t", "h"])
async def test_the_fallbacks_of_a_task_that_waits_are_seen(scheduling: Scheduling, kind: str) -> None:
    task = (await scheduling.submit("p", kind, b"", tries=[kind], patience_s=2)).id
    where = (await finding.candidates(scheduling._app, "p")).topics
    found = await finding.look(scheduling._app, where, task)
    assert found is not None
    assert (found.due_ms is None) == (kind == "t"), "in a queue, and in a lane"
    assert (found.tries, found.at) == ((kind,), 0)


async def test_looking_for_a_task_stores_nothing(scheduling: Scheduling) -> None:
    await scheduling.submit("p", "t", b"", id="a task")
    for pool, expected in (("p", errors.UnknownTask), ("q", errors.UnknownPool)):
        with pytest.raises(expected):
            await scheduling.status(pool, "never")
    assert await administering.waiting(scheduling._app, "p") == {"t": 1}
    assert (await scheduling.submit("p", "t", b"", id="never")).id == "never"
    assert await administering.waiting(scheduling._app, "p") == {"t": 2}, "its id was not remembered by the look"


async def test_a_pool_with_many_tenants_is_searched_by_type_and_tenant(
    scheduling: Scheduling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "MOST_TOPICS", 5)
    for n in range(9):
        await scheduling.submit("p", "t", b"", tenant=f"tenant-{n}", id=f"of-{n}")
    await scheduling.submit("p", "u", b"", id="of-none")
    for hints in ({"tenant": "tenant-7"}, {"tenant": "tenant-7", "task_type": "t"}):
        assert (await scheduling.status("p", "of-7", **hints)).state == "waiting"
    assert (await scheduling.status("p", "of-none")).state == "waiting"
    for hints in ({}, {"task_type": "t"}):
        assert len((await finding.candidates(scheduling._app, "p", **hints)).topics) <= 5
        with pytest.raises(errors.UnknownTask, match="over 5 topics: give its type and its tenant"):
            await scheduling.status("p", "of-7", **hints)
    for hints in ({"tenant": "tenant-6"}, {"task_type": "u", "tenant": "tenant-7"}):
        with pytest.raises(errors.UnknownTask) as caught:
            await scheduling.status("p", "of-7", **hints)
        assert "give its type" not in str(caught.value)


async def test_topics_that_are_not_the_pools_are_left_out(scheduling: Scheduling) -> None:
    app = scheduling._app
    await app.create_topic("p.mine", qps=1, dedupe_s=60)
    await app.publish("p.mine", b"", message_id="m")
    await app.create_topic("P.t", qps=1)
    with pytest.raises(errors.UnknownTask):
        await scheduling.status("p", "m")


async def test_the_same_id_of_another_tenant_is_another_task(scheduling: Scheduling) -> None:
    app = scheduling._app
    log = EndLog(lambda: app.database, "online", lambda: "host-1")
    log.add(End("p", "login", "t", "a", "", 1_000_000, 2_000_000, "r", 1, {}, "done", 3_000_000))
    await log.flush()
    await scheduling.submit("p", "t", b"", tenant="b", id="login")
    assert (await scheduling.status("p", "login", tenant="a")).state == "done"
    assert (await scheduling.status("p", "login", tenant="b")).state == "waiting"
    assert (await scheduling.result("p", "login", tenant="a")).state == "done"
    with pytest.raises(TimeoutError):
        await scheduling.result("p", "login", tenant="b", timeout_s=0.05, poll_s=0.01)


@pytest.mark.parametrize("hints", [{"task_type": "a b"}, {"tenant": "a/b"}, {"task_type": "\ud800"}, {"tenant": "\0"}])
async def test_names_that_nothing_has_are_refused(scheduling: Scheduling, hints: dict[str, str]) -> None:
    with pytest.raises(errors.InvalidPool):
        await scheduling.status("p", "m", **hints)
