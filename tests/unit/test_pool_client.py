"""The client of pools, against the API itself on a real socket, with a host that does tasks."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from test_push_client import Flaky

from emq import App
from emq.runtime import errors, settings
from emq.runtime.settings import Address
from emq_clients import ApiError, ApiUnavailable, AsyncPoolClient, PoolClient, transport
from emq_clients.pools import answers, client, operations
from emq_push.service.service import PushService
from emq_scheduling import Pool, Resource, Run, Scheduling, Task
from emq_web import serving
from support import push_api
from support.pools import POOL
from support.served import served

Service = tuple[str, str]
"""Address and admin key."""


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    """The API without a host, so that tasks wait."""
    async with push_api.listening() as (address, api):
        yield address, api.admin


async def test_pools_and_entries_are_changed_by_their_version(service: Service) -> None:
    async with AsyncPoolClient(*service) as pools:
        made = await pools.put_pool(POOL, version=0)
        assert (made.name, made.version, made.warnings) == ("sms", 1, [])
        with pytest.raises(ApiError) as caught:
            await pools.put_pool(POOL, version=0)
        assert (caught.value.status, caught.value.code) == (412, "other_version")
        typed = msgspec.convert((await pools.pool("sms")).pool, Pool)
        assert typed.types["verification"].longest_wait_s == 10.0
        assert (await pools.put_pool(msgspec.structs.replace(typed, zone="UTC"), version=1)).version == 2
        limited = await pools.set_limits("sms", "south", [{"name": "requests", "amount": 5, "per": "second"}])
        assert limited.value["limits"] == [{"name": "requests", "amount": 5.0, "per": "second"}]
        assert "paused" not in (await pools.resume_resource("sms", "north 1", version=3)).value
        await pools.put_entry("sms", "resources", "east/2", Resource("north", takes={"marketing": {}}))
        changed = await pools.change_entry("sms", "resources", "east/2", {"weight": 2})
        assert changed.value == {"parent": "north", "takes": {"marketing": {}}, "weight": 2.0}
        await pools.put_pool({"name": "calls"})
        assert [each.name async for each in pools.all(pools.pools, limit=1)] == ["calls", "sms"]
        await pools.submit("sms", "marketing", 1)
        with pytest.raises(ApiError, match="1 task of pool 'sms' waits or runs"):
            await pools.delete_pool("sms")
        await pools.delete_pool("sms", force=True)


async def test_tasks_are_submitted_wait_and_are_cancelled(service: Service) -> None:
    async with AsyncPoolClient(*service) as pools:
        await pools.put_pool(POOL)
        assert (
            await pools.submit("sms", "marketing", {"n": 1}, id="mine", tenant="shop", tries=["@south", "marketing"])
        ).id == "mine"
        status = await pools.status("sms", "mine", task_type="marketing", tenant="shop")
        assert status == answers.TaskStatus("mine", "waiting")
        assert await pools.cancel("sms", "mine") == answers.CancelAsked("mine", True)
        tasks = [pools.task("notification", n, key="k") for n in range(3)]
        outcomes = await pools.submit_many("sms", [*tasks, pools.task("letter", 1)])
        assert (outcomes.accepted, outcomes.refused) == (3, 1)
        assert [each.id for each in outcomes.data] == [*(task["id"] for task in tasks), None]
        assert outcomes.data[3].problem is not None
        assert outcomes.data[3].problem.code == "unknown_type"


async def test_a_host_does_what_the_client_submits(service: Service) -> None:
    app = App(options=settings.Settings(store="memory:"))

    @Scheduling(app).performer("sms")
    async def send(task: Task, run: Run) -> dict[str, str]:
        return {"sent by": run.resource}

    async with asyncio.timeout(30), app:
        parts = await PushService.open(app)
        _, key = await parts.keys.create("submit", "shop")
        _, admin = await parts.keys.create("admin", "test")
        await parts.close()
        async with serving.serving(app, Address("127.0.0.1", 0)) as address, app.running():
            async with AsyncPoolClient(f"http://{address}", admin) as pools:
                await pools.put_pool(POOL)
            async with AsyncPoolClient(f"http://{address}", key) as pools:
                with pytest.raises(ApiError) as caught:
                    await pools.put_pool(POOL)
                assert caught.value.status == 403
                ids = [(await pools.submit("sms", "verification", n)).id for n in range(3)]
                for id_ in ids:
                    status = await pools.result("sms", id_, task_type="verification")
                    assert (status.state, status.result) == ("done", '{"sent by":"north 1"}')
                with PoolClient(f"http://{address}", key) as blocking:
                    assert await asyncio.to_thread(blocking.result, "sms", status.id) == status
                listed = [each async for each in pools.all(pools.attempts, "sms", task_type="verification", limit=2)]
                assert {each.task for each in listed} == set(ids)
                while not (snapshot := await pools.snapshot("sms")).live:
                    await asyncio.sleep(0.1)
                assert snapshot.resources["north 1"].limits[0].name == "requests"
                found = await pools.what_if("sms", ["remove south"], waiting={"marketing": 500})
                assert found.before.starts.keys() - found.after.starts.keys() == {"south"}


async def test_a_task_that_does_not_end_is_told_of_and_goes_on(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "POLL_S", 0.01)
    async with AsyncPoolClient(*service) as pools:
        await pools.put_pool(POOL)
        await pools.submit("sms", "marketing", 1, id="mine")
        for task in ("mine", "unknown"):
            with pytest.raises(TimeoutError):
                await pools.result("sms", task, timeout_s=0.1)
            with PoolClient(*service) as blocking, pytest.raises(TimeoutError, match=r"has not ended within 0\.1 s"):
                await asyncio.to_thread(blocking.result, "sms", task, timeout_s=0.1)
        with pytest.raises(ApiError, match="no pool"):
            await pools.result("other", "mine")
        assert (await pools.status("sms", "mine")).state == "waiting"


@pytest.mark.parametrize("pool", [{}, {"name": 5}, {"name": ""}, Resource()])
def test_a_pool_without_a_name_is_refused(pool: Any) -> None:
    with pytest.raises(errors.InvalidPool, match="name"):
        operations.put_pool(pool)


async def test_a_submit_without_an_answer_is_repeated_with_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "WAIT_S", 0.001)
    silent = Flaky()
    async with served(silent.serve) as port, AsyncPoolClient(f"http://127.0.0.1:{port}", "k", tries=3) as pools:
        with pytest.raises(ApiUnavailable):
            await pools.submit("sms", "code", {})
        assert len(silent.asked) == 3
        assert len({msgspec.json.decode(asked.partition(b"\r\n\r\n")[2])["id"] for asked in silent.asked}) == 1
        for once in (operations.put_pool({"name": "sms"}, version=3), operations.delete_pool("sms")):
            silent.asked.clear()
            with pytest.raises(ApiUnavailable):
                await pools.send(once)
            keys = {re.search(rb"(?i)idempotency-key: (\S+)", asked)[1] for asked in silent.asked}  # type: ignore[index]
            assert (len(silent.asked), len(keys)) == (3, 1), "else a repeat is told of what the first request did"
