"""The API: tasks of pools, from the POST to the result."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from emq import App
from emq.runtime import errors, settings
from emq_push.service.service import PushService
from emq_scheduling import finding
from emq_scheduling.hosting.attempts import Performer, Run
from emq_scheduling.outcomes import TryNext
from emq_scheduling.records.ends import End, EndLog
from emq_scheduling.scheduling import Scheduling
from emq_scheduling.submitting import Submitter
from emq_scheduling.tasks import Task
from support import push_api
from support.pools import POOL
from support.push_api import Api

SMS = "/v1/pools/sms"
TASKS = f"{SMS}/tasks"
HELLO = {"type": "notification", "payload": {"text": "hello"}}


api = push_api.fixture(puts={SMS: POOL})


@contextlib.asynccontextmanager
async def performing(performer: Performer | None = None) -> AsyncIterator[tuple[Api, list[Task]]]:
    """An app whose host does the tasks of the pool, with the API over it."""
    app = App(options=settings.merged(settings.Settings(store="memory:")))
    done: list[Task] = []

    @Scheduling(app).performer("sms")
    async def send(task: Task, run: Run) -> object:
        done.append(task)
        return {"sent by": run.resource} if performer is None else await performer(task, run)

    async with app:
        service = await PushService.open(app)
        _, admin = await service.keys.create("admin", "test")
        async with push_api.served(app, service, admin) as api:
            await api("PUT", SMS, POOL, status=201)
            async with app.running():
                yield api, done
        await service.close()


async def ended(api: Api, task: str) -> Any:
    async with asyncio.timeout(20):
        while True:
            response = await api.raw("GET", f"{TASKS}/{task}")
            if response.status_code == 200 and response.json()["state"] not in ("running", "waiting", "unknown"):
                return response.json()
            await asyncio.sleep(0.1)


async def test_a_task_is_submitted_done_and_shows_its_result() -> None:
    async with performing() as (api, done):
        body = b'{"type":"verification","payload":{"code":1.50},"id":"mine","tenant":"shop","key":"k"}'
        response = await api.raw("POST", TASKS, content=body, headers={"Content-Type": "application/json"})
        assert response.status_code == 202, response.text
        assert response.json()["id"] == "mine"
        found = await ended(api, "mine")
        assert (found["state"], found["result"]) == ("done", '{"sent by":"north 1"}')
        [attempt] = found["attempts"]
        assert (attempt["resource"], attempt["tenant"], attempt["attempt"]) == ("north 1", "shop", 1)
        assert attempt["started"] >= attempt["submitted"]
        assert [task.payload for task in done] == [b'{"code":1.50}'], "byte by byte as it was given"
        assert (await api("GET", TASKS))["data"] == [attempt]
        async with asyncio.timeout(20):
            while not (await api("GET", f"{SMS}/snapshot"))["live"]:
                await asyncio.sleep(0.1)


async def test_keys_of_a_task_reach_its_performer_its_attempts_and_the_snapshot() -> None:
    async with performing() as (api, done):
        limit = {"by": ["account", "tenant"], "amount": 2, "per": "hour", "types": ["notification"]}
        await api("PUT", f"{SMS}/limits/few", limit, status=201)
        async with asyncio.timeout(20):
            while (refused := await api.raw("POST", TASKS, HELLO)).status_code == 202:
                await asyncio.sleep(0.1)  # until this process knows the limit
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")
        assert "counts by 'account'" in refused.json()["detail"]
        for number in range(4):
            await api("POST", TASKS, {**HELLO, "id": f"k{number}", "keys": {"account": "a7"}}, status=202)
        found = await ended(api, "k1")
        assert found["attempts"][0]["keys"] == {"account": "a7"}
        async with asyncio.timeout(20):
            while "a7," not in (now := await api("GET", f"{SMS}/snapshot"))["limits"].get("few", {}).get("most", {}):
                await asyncio.sleep(0.1)
        assert now["limits"]["few"]["most"]["a7,"] == 2
        assert now["types"]["notification"]["held"] >= 2
        assert [task.keys for task in done if task.id[0] == "k"] == [{"account": "a7"}] * 2
        await api("PATCH", f"{SMS}/limits/few", {"amounts": {"a7,": 4}})
        assert (await ended(api, "k3"))["state"] == "done"


async def test_fallbacks_and_progress_go_through_the_api() -> None:
    freed = asyncio.Event()

    async def perform(task: Task, run: Run) -> str:
        if run.resource == "north 1":
            raise TryNext("this channel does not reach it")
        run.beat({"part": 3})
        await freed.wait()
        return f"{task.type} on {run.resource}, {run.progress}"

    async with performing(perform) as (api, _):
        body = {**HELLO, "id": "mine", "tries": ["@north 1", "marketing@south"], "patience_s": 60}
        await api("POST", TASKS, body, status=202)
        async with asyncio.timeout(20):
            while (found := await api("GET", f"{TASKS}/mine"))["progress"] is None or found["state"] != "running":
                await asyncio.sleep(0.1)
        assert found["progress"] == {"part": 3}
        assert found["told"] >= found["attempts"][-1]["started"]
        freed.set()
        found = await ended(api, "mine")
        assert (found["result"], found["progress"]) == ("\"marketing on south, {'part': 3}\"", None)
        shown = [(each["type"], each["as_type"], each["resource"], each["outcome"]) for each in found["attempts"]]
        assert shown == [
            ("notification", None, "north 1", "failed"),
            ("notification", "marketing", "south", "done"),
        ]
        assert "goes on" not in found["attempts"][0]["error"]
        assert [each["attempt"] for each in found["attempts"]] == [1, 2]


@pytest.mark.parametrize(
    ("fields", "code", "told"),
    [
        ({"tries": ["marketing"]}, "invalid_request", "tries begins with 'marketing'"),
        ({"tries": ["@east"]}, "no_able_resource", "no resource 'east'"),
        ({"tries": ["notification", "voice"]}, "unknown_type", "no task type 'voice'"),
        ({"patience_s": 1}, "invalid_request", "patience_s is for tasks with tries"),
        ({"tries": []}, "invalid_request", ""),
        ({"tries": ["@north 1"], "patience_s": -1}, "invalid_request", ""),
    ],
)
async def test_wrong_fallbacks_are_a_problem(api: Api, fields: dict[str, Any], code: str, told: str) -> None:
    status = 409 if code == "no_able_resource" else 422
    problem = await api("POST", TASKS, {**HELLO, **fields}, status=status)
    assert problem["code"] == code
    assert told in problem["detail"]


async def test_a_waiting_task_is_cancelled() -> None:
    async with performing() as (api, done):
        for name in ("north 1", "north 2", "south"):
            await api("POST", f"{SMS}/resources/{name}:pause")
        async with asyncio.timeout(20):
            while (refused := await api.raw("POST", TASKS, {**HELLO, "deadline_s": 5})).status_code != 409:
                await asyncio.sleep(0.2)  # until the owner has told that nothing starts
        assert refused.json()["code"] == "deadline"
        assert "would not start within a day" in refused.json()["detail"]
        done.clear()
        await api("POST", TASKS, {"type": "marketing", "payload": 1, "id": "late"})
        assert (await api("POST", f"{TASKS}/late:cancel", status=202)) == {"id": "late", "cancel_asked": True}
        assert (await ended(api, "late"))["state"] == "cancelled"
        assert done == []


async def test_a_task_that_was_accepted_waits_until_it_starts(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "MOST_TOPICS", 3)
    for n in range(4):
        await api("POST", TASKS, {**HELLO, "id": f"of-{n}", "tenant": f"tenant-{n}"}, status=202)
    assert "give its type and its tenant" in (await api("GET", f"{TASKS}/of-2", status=404))["detail"]
    found = await api("GET", f"{TASKS}/of-2?type=notification&tenant=tenant-2")
    nothing = {"cancel_asked": False, "result": None, "progress": None, "told": None, "attempts": []}
    assert found == {"id": "of-2", "state": "waiting", **nothing}
    assert (await api("GET", f"{TASKS}/of-2?tenant=a/b", status=422))["code"] == "invalid_pool"


async def test_a_task_that_nothing_is_known_of_is_not_found(api: Api) -> None:
    assert (await api("GET", f"{TASKS}/never", status=404))["code"] == "unknown_task"
    await api("POST", f"{TASKS}/never:cancel", status=202)
    found = await api("GET", f"{TASKS}/never")
    assert (found["state"], found["cancel_asked"], found["attempts"]) == ("unknown", True, [])
    for method, path in (("GET", ""), ("GET", "/x"), ("POST", "/x:cancel")):
        assert (await api(method, f"/v1/pools/other/tasks{path}", status=404))["code"] == "unknown_pool"
    assert (await api("POST", "/v1/pools/other/tasks", HELLO, status=404))["code"] == "unknown_pool"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"type": "voice", "payload": 1}, 422, "unknown_type"),
        ({"type": "verification", "payload": 1, "costs": {"requests": 1000}}, 422, "cost_above_limit"),
        ({"type": "marketing", "payload": 1, "zone": "Mars/Base"}, 422, "invalid_request"),
        ({"type": "marketing", "payload": 1, "tenant": "a b"}, 422, "invalid_pool"),
        ({"type": "marketing"}, 422, "invalid_request"),
        ({"type": "marketing", "payload": 1, "colour": 1}, 422, "invalid_request"),
        ({"type": "marketing", "payload": 1, "deadline_s": -1}, 422, "invalid_request"),
        ({"type": "marketing", "payload": 1, "id": "a/b"}, 422, "invalid_request"),
        ({"tasks": []}, 422, "invalid_request"),
    ],
)
async def test_a_task_that_the_pool_does_not_take_is_refused_with_the_reason(
    api: Api, body: Any, status: int, code: str
) -> None:
    problem = await api("POST", TASKS, body, status=status)
    assert (problem["code"], problem["status"]) == (code, status)
    assert "\n" not in problem["detail"]


async def test_a_type_without_a_resource_is_a_conflict(api: Api) -> None:
    await api("DELETE", f"{SMS}/resources/north 1")
    problem = await api("POST", TASKS, {"type": "verification", "payload": 1}, status=409)
    assert problem["code"] == "no_able_resource"


async def test_each_of_several_tasks_has_its_receipt_or_its_problem(api: Api) -> None:
    tasks = [{**HELLO, "id": "a"}, {**HELLO, "type": "voice"}, {**HELLO, "tenant": "x y"}, {**HELLO, "id": "b"}]
    found = await api("POST", TASKS, {"tasks": tasks}, status=202)
    assert (found["accepted"], found["refused"]) == (2, 2)
    assert [each["id"] for each in found["data"]] == ["a", None, None, "b"]
    codes = [each["problem"] and each["problem"]["code"] for each in found["data"]]
    assert codes == [None, "unknown_type", "invalid_pool", None]
    many = {"tasks": [{**HELLO, "id": f"t{n}"} for n in range(501)]}
    assert (await api("POST", TASKS, many, status=422))["pointer"] == "/tasks"
    many["tasks"].pop()
    assert (await api("POST", TASKS, many, status=202))["accepted"] == 500


async def test_a_payload_that_is_too_large_is_refused_by_itself(api: Api) -> None:
    large = {"type": "marketing", "payload": "x" * (1 << 21)}
    assert (await api("POST", TASKS, large, status=422))["code"] == "invalid_request"
    found = await api("POST", TASKS, {"tasks": [HELLO, large]}, status=202)
    assert [each["problem"] is None for each in found["data"]] == [True, False]


async def test_a_store_that_does_not_answer_is_503_for_all_and_told_for_each_of_some(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = errors.StoreUnavailable("the store does not answer")
    outcomes: list[Any] = [away, away]

    async def submit(self: Submitter, tasks: Any) -> Any:
        return outcomes[: len(tasks)]

    monkeypatch.setattr(Submitter, "submit", submit)
    assert (await api("POST", TASKS, {"tasks": [HELLO, HELLO]}, status=503))["code"] == "unavailable"
    assert (await api("POST", TASKS, HELLO, status=503))["code"] == "unavailable"
    outcomes[1] = errors.OutcomeUnknown("the connection broke")
    key = {"Idempotency-Key": "k"}
    await api("POST", TASKS, {"tasks": [HELLO, HELLO]}, headers=key, status=503)
    again = await api("POST", TASKS, {"tasks": [HELLO, HELLO]}, headers=key, status=409)
    assert again["code"] == "request_in_progress", "one of them may be stored"
    outcomes[0] = errors.TaskRefused("no", code="deadline", wait_s=12.0)
    found = await api("POST", TASKS, {"tasks": [HELLO, HELLO]}, status=202)
    assert [each["problem"]["status"] for each in found["data"]] == [409, 503]
    assert found["data"][0]["wait_s"] == 12.0


async def test_lists_of_attempts_go_on_at_their_cursor_and_are_chosen(api: Api) -> None:
    log = EndLog(lambda: api.app.database, "online", lambda: "host-1")
    for n in range(5):
        outcome = "failed" if n == 2 else "done"
        log.add(End("sms", f"t{n}", "marketing", "", "", 1_000_000, 2_000_000, "south", 1, {}, outcome, 3_000_000))
    await log.flush()
    found = [row["task"] for row in await api.listed(TASKS, limit=2)]
    assert found == ["t4", "t3", "t2", "t1", "t0"], "of equal starts, too, each once"
    assert [row["task"] for row in (await api("GET", f"{TASKS}?outcome=failed"))["data"]] == ["t2"]
    assert (await api("GET", f"{TASKS}?resource=north"))["data"] == []
    assert len((await api("GET", f"{TASKS}?type=marketing&resource=south"))["data"]) == 5
    first = await api("GET", f"{TASKS}?limit=1")
    other = await api("GET", TASKS, params={"outcome": "done", "cursor": first["next"]}, status=422)
    assert other["code"] == "invalid_cursor"
    assert (await api("GET", f"{TASKS}?colour=red", status=422))["code"] == "invalid_request"
