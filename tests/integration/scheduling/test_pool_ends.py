"""How tasks end: done, dead after their attempts, expired, cancelled; what records and replies say of it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import emq
from emq.runtime import errors
from emq_scheduling import Limit, Overloaded, Pool, Resource, ResourceFailed, Run, Scheduling, Task, TaskType
from support.waiting import until

LIMIT = (Limit("requests", 20, "second"), Limit("tokens", 1000, "second"))


class Place:
    """An app that is a host of the pool "p" and of the topic "replies"."""

    def __init__(self, app: emq.App, scheduling: Scheduling) -> None:
        self.app = app
        self.scheduling = scheduling
        self.attempts: list[tuple[str, int]] = []
        self.replies: dict[str, dict[str, Any]] = {}
        self.replied: list[str] = []
        self.fails: dict[str, Exception] = {}
        self.results: dict[str, object] = {}

    async def perform(self, task: Task, run: Run) -> object:
        self.attempts.append((task.id, task.attempt))
        if task.id in self.fails:
            raise self.fails[task.id]
        if task.payload == b"slow":
            await asyncio.sleep(2.0)
        if task.payload == b"cancels" and (current := asyncio.current_task()) is not None:
            current.cancel()
            await asyncio.sleep(2.0)
        return self.results.get(task.id, {"sent": task.payload.decode()})

    async def reply(self, task: str, timeout_s: float = 15.0) -> dict[str, Any]:
        await until(lambda: task in self.replies, timeout_s)
        return self.replies[task]


@contextlib.asynccontextmanager
async def at_rest(directory: Path, **types: TaskType) -> AsyncIterator[Place]:
    """A place whose app does not run yet."""
    app = emq.App(f"sqlite:///{directory}/emq.db")
    made = Place(app, Scheduling(app))
    made.scheduling.performer("p")(made.perform)

    @app.handler("replies")
    async def note(body: dict) -> None:  # type: ignore[type-arg]
        made.replies[body["task"]] = body
        made.replied.append(body["task"])

    async with app:
        await app.create_topic("replies", 1000)
        resource = Resource(limits=LIMIT, takes={kind: {} for kind in types})
        await made.scheduling.pools.put(Pool("p", resources={"r": resource}, types=types))
        yield made


@contextlib.asynccontextmanager
async def place(directory: Path, **types: TaskType) -> AsyncIterator[Place]:
    async with at_rest(directory, **types) as made, made.app.running():
        yield made


async def test_done_and_dead_tasks_are_recorded_replied_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kind = TaskType(max_attempts=3, backoff_s=(0.05,), costs={"tokens": 1.0})
    async with place(tmp_path, t=kind) as made:
        made.fails = {"bad": ValueError("no such number"), "refused": errors.Reject("blocked")}
        for name in ("good", "bad", "refused"):
            await made.scheduling.submit("p", "t", b"x", id=name, reply_to="replies")
        found = {name: await made.reply(name) for name in ("good", "bad", "refused")}
        assert found["good"]["result"] == {"sent": "x"}
        ends = {"good": "done", "bad": "dead", "refused": "dead"}
        assert {name: reply["outcome"] for name, reply in found.items()} == ends
        assert "no such number" in found["bad"]["error"]
        assert [attempt for name, attempt in made.attempts if name == "bad"] == [1, 2, 3]
        assert [attempt for name, attempt in made.attempts if name == "refused"] == [1]
        statuses = {name: await made.scheduling.result("p", name) for name in found}
        assert {name: status.state for name, status in statuses.items()} == ends
        assert [each.outcome for each in statuses["bad"].attempts] == ["failed", "failed", "dead"]
        letters = [letter.id async for letter in made.app.dead_letters("p.t")]
        assert sorted(letters) == ["bad", "refused"]
        await until(lambda: sum("message bad failed" in line for line in caplog.messages) == 3)
        last = [line for line in caplog.messages if "message bad failed" in line][-1]
        assert "attempt 3 of 3: ValueError: no such number; it is a dead letter now, after its last attempt" in last


async def test_a_performer_that_always_gives_up_is_called_as_often_as_its_type_says(tmp_path: Path) -> None:
    async with at_rest(tmp_path, t=TaskType(max_attempts=2, backoff_s=(0.05,))) as made:
        stored = await made.scheduling.pools.get("p")
        stubborn = msgspec.structs.replace(stored.pool.resources["r"], adapts=False)
        await made.scheduling.pools.put(msgspec.structs.replace(stored.pool, resources={"r": stubborn}))
        made.fails = {"busy": Overloaded("429"), "broken": ResourceFailed("no route")}
        async with made.app.running():
            for name in ("busy", "broken", "cancels"):
                await made.scheduling.submit("p", "t", name.encode(), id=name, reply_to="replies")
            errors_ = {name: (await made.reply(name))["error"] for name in ("busy", "broken", "cancels")}
            ends = [(await made.scheduling.result("p", name)).attempts for name in errors_]
    assert Counter(made.attempts) == {(name, attempt): 1 for name in errors_ for attempt in (1, 2)}
    assert [[each.outcome for each in attempts] for attempts in ends] == [["failed", "dead"]] * 3
    assert errors_["busy"] == "429"
    assert "CancelledError" in errors_["cancels"]


async def test_a_dead_task_that_is_replayed_begins_again(tmp_path: Path) -> None:
    async with place(tmp_path, t=TaskType(max_attempts=1)) as made:
        made.fails = {"bad": ValueError("down")}
        await made.scheduling.submit("p", "t", b"x", id="bad", reply_to="replies")
        assert (await made.reply("bad"))["outcome"] == "dead"
        made.fails.clear()
        made.replies.clear()
        await until(lambda: made.app.replay_dead_letters("p.t"), step_s=0.1)
        assert (await made.reply("bad"))["outcome"] == "done"


async def test_an_expired_task_does_not_start(tmp_path: Path) -> None:
    async with place(tmp_path, slow=TaskType(priority=0), t=TaskType(priority=1, ttl_s=0.5)) as made:
        stored = await made.scheduling.pools.get("p")
        closed = msgspec.structs.replace(stored.pool.resources["r"], paused=True)
        await made.scheduling.pools.put(msgspec.structs.replace(stored.pool, resources={"r": closed}))
        await asyncio.sleep(2.5)
        await made.scheduling.submit("p", "t", b"x", id="late", reply_to="replies")
        reply = await made.reply("late")
        assert reply["outcome"] == "expired"
        assert (await made.scheduling.result("p", "late")).state == "expired"
        assert made.attempts == []


async def test_a_task_too_large_for_a_lowered_limit_waits_and_holds_up_nobody(tmp_path: Path) -> None:
    async with place(tmp_path, t=TaskType(costs={"tokens": 1.0})) as made:
        stored = await made.scheduling.pools.get("p")
        less = msgspec.structs.replace(stored.pool.resources["r"], limits=(LIMIT[0], Limit("tokens", 10, "second")))
        for number in range(12):
            await made.scheduling.submit("p", "t", b"slow", id=f"first-{number}")
        large = [f"large-{number}" for number in range(40)]
        for name in large:
            await made.scheduling.submit("p", "t", b"x", id=name, costs={"tokens": 900})
        await made.scheduling.pools.put(msgspec.structs.replace(stored.pool, resources={"r": less}))
        await asyncio.sleep(1.5)
        await made.scheduling.submit("p", "t", b"x", id="small", reply_to="replies")
        assert (await made.reply("small"))["outcome"] == "done"
        with pytest.raises(errors.TaskRefused, match="tokens=900"):
            await made.scheduling.submit("p", "t", b"x", costs={"tokens": 900})
        assert [letter.id async for letter in made.app.dead_letters("p.t")] == []


async def test_a_task_submitted_twice_by_its_id_is_done_once(tmp_path: Path) -> None:
    async with place(tmp_path, t=TaskType()) as made:
        for _ in range(3):
            await made.scheduling.submit("p", "t", b"x", id="same", reply_to="replies")
        await made.reply("same")
        await asyncio.sleep(1.0)
        assert made.attempts == [("same", 1)]


async def test_tasks_that_expired_in_the_store_delay_nothing_and_are_recorded_and_replied(tmp_path: Path) -> None:
    async with place(tmp_path, t=TaskType(ttl_s=1.5)) as made:
        await made.scheduling.submit("p", "t", b"first", id="first", reply_to="replies")
        await made.reply("first")
        old = [f"old-{number}" for number in range(2_000)]
        for start in range(0, len(old), 500):
            part = old[start : start + 500]
            await asyncio.gather(*(made.scheduling.submit("p", "t", b"x", id=name) for name in part))
        await made.scheduling.submit("p", "t", b"x", id="replied", reply_to="replies")
        assert (await made.reply("replied"))["outcome"] == "expired"
        await asyncio.sleep(1.5)
        attempts = len(made.attempts)
        begun = time.monotonic()
        for number in range(20):
            await made.scheduling.submit("p", "t", b"x", id=f"new-{number}", reply_to="replies")
        fates = {(await made.reply(f"new-{number}"))["outcome"] for number in range(20)}
        assert fates == {"done"}
        assert len(made.attempts) == attempts + 20
        assert time.monotonic() - begun < 15
        states = [(await made.scheduling.result("p", name)).state for name in (*old[::100], "old-1999", "replied")]
        started = {name for name, _ in made.attempts}
        assert all((state == "done") == (name in started) for name, state in zip(old[::100], states, strict=False))
        assert states[-2:] == ["expired", "expired"]


# ------------------------------------------------------------------------------------------------ results and replies


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
    async with at_rest(tmp_path, t=TaskType(max_attempts=3, backoff_s=(0.1,))) as made:
        made.results, made.fails = RESULTS, {"failing": ValueError("again and again")}
        await made.app.create_topic("nowhere", qps=100)
        for name in [*RESULTS, "failing"]:
            await made.scheduling.submit("p", "t", b"", id=name, reply_to=reply_to)
        await made.app.admin.delete("nowhere")
        async with made.app.running():
            states = [(await made.scheduling.result("p", name)).state for name in RESULTS]
            failed = await made.scheduling.result("p", "failing")
            await asyncio.sleep(1.0)
    assert states == ["done"] * len(RESULTS)
    assert failed.state == "dead"
    assert [each.outcome for each in failed.attempts] == ["failed", "failed", "dead"]
    runs = Counter(name for name, _ in made.attempts)
    assert runs == {**dict.fromkeys(RESULTS, 1), "failing": 3}
    if reply_to == "replies":
        assert made.replies.keys() == runs.keys()
        assert made.replies["plain"]["result"] == {"ok": True}
        assert all("its result was not sent" in str(made.replies[name]["error"]) for name in ("large", "object"))


async def test_a_reply_that_cannot_be_sent_for_a_while_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = [
        errors.StoreUnavailable("it is away"),
        errors.OutcomeUnknown("it may be there"),
        errors.StoreFull("full"),
    ]
    async with at_rest(tmp_path, t=TaskType(max_attempts=1)) as made:
        publish = made.app.publish

        async def hindered(topic: str, *args: Any, **given: Any) -> object:
            if refused:
                raise refused.pop()
            return await publish(topic, *args, **given)

        await made.scheduling.submit("p", "t", b"", id="one", reply_to="replies")
        monkeypatch.setattr(made.app, "publish", hindered)
        async with made.app.running():
            await made.reply("one")
            assert (await made.scheduling.result("p", "one")).state == "done"
            await asyncio.sleep(1.0)
    assert not refused
    assert made.attempts == [("one", 1)]
    assert made.replied == ["one"]
