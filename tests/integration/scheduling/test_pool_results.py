"""What performers return and raise: a task that is done is not done again, and one that fails is not tried for ever."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import emq
from emq.runtime import errors
from emq_scheduling.hosting.attempts import Run
from emq_scheduling.model import Limit, Pool, Resource, TaskType
from emq_scheduling.scheduling import Scheduling
from emq_scheduling.tasks import Task
from support.waiting import until


class Mute:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


def nested() -> list[object]:
    found: list[object] = []
    found.append(found)
    return found


RESULTS: dict[str, object] = {
    "large": b"x" * 5_000_000,
    "object": object(),
    "mute": Mute(),
    "nested": nested(),
    "big": 2**70,
    "plain": {"ok": True},
}


@pytest.mark.parametrize("reply_to", [None, "replies", "nowhere"])
async def test_a_result_that_cannot_be_sent_or_kept_repeats_nothing(tmp_path: Path, reply_to: str | None) -> None:
    app = emq.App(f"sqlite:///{tmp_path}/emq.db")
    scheduling = Scheduling(app)
    runs: Counter[str] = Counter()
    replies: dict[str, dict[str, object]] = {}

    @scheduling.performer("p")
    async def perform(task: Task, run: Run) -> object:
        runs[task.id] += 1
        if task.id == "failing":
            raise ValueError("again and again")
        return RESULTS[task.id]

    @app.handler("replies")
    async def reply(message: emq.Message) -> None:
        body = json.loads(message.payload)
        replies[body["task"]] = body

    limit = Limit("requests", 50, "second")
    resources = {"r": Resource(limits=(limit,), takes={"t": {}}, adapts=False)}
    async with app:
        for topic in ("replies", "nowhere"):
            await app.create_topic(topic, qps=100)
        await scheduling.pools.put(
            Pool("p", resources=resources, types={"t": TaskType(max_attempts=3, backoff_s=(0.1,))})
        )
        for name in [*RESULTS, "failing"]:
            await scheduling.submit("p", "t", b"", task_id=name, reply_to=reply_to)
        await app.admin.delete("nowhere")
        async with app.running():
            states = [(await scheduling.result("p", name)).state for name in RESULTS]
            failed = await scheduling.result("p", "failing")
            await asyncio.sleep(1.0)
    assert states == ["done"] * len(RESULTS)
    assert failed.state == "dead"
    assert [each.outcome for each in failed.attempts] == ["failed", "failed", "dead"]
    assert runs == {**dict.fromkeys(RESULTS, 1), "failing": 3}
    if reply_to == "replies":
        assert replies.keys() == runs.keys()
        assert replies["plain"]["result"] == {"ok": True}
        assert all("its result was not sent" in str(replies[name]["error"]) for name in ("large", "object"))


async def test_a_reply_that_cannot_be_sent_for_a_while_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = emq.App(f"sqlite:///{tmp_path}/emq.db")
    scheduling = Scheduling(app)
    runs: Counter[str] = Counter()
    replied: list[str] = []
    refused = [
        errors.StoreUnavailable("it is away"),
        errors.OutcomeUnknown("it may be there"),
        errors.StoreFull("full"),
    ]
    publish = app.publish

    async def hindered(topic: str, *args: Any, **given: Any) -> object:
        if refused:
            raise refused.pop()
        return await publish(topic, *args, **given)

    @scheduling.performer("p")
    async def perform(task: Task, run: Run) -> object:
        runs[task.id] += 1
        monkeypatch.setattr(app, "publish", hindered)
        return {"ok": True}

    @app.handler("replies")
    async def reply(message: emq.Message) -> None:
        replied.append(json.loads(message.payload)["task"])

    resources = {"r": Resource(limits=(Limit("requests", 50, "second"),), takes={"t": {}})}
    async with app:
        await app.create_topic("replies", qps=100)
        await scheduling.pools.put(Pool("p", resources=resources, types={"t": TaskType(max_attempts=1)}))
        await scheduling.submit("p", "t", b"", task_id="one", reply_to="replies")
        async with app.running():
            await until(lambda: replied == ["one"])
            assert (await scheduling.result("p", "one")).state == "done"
            await asyncio.sleep(1.0)
    assert not refused
    assert runs == {"one": 1}
    assert replied == ["one"]
