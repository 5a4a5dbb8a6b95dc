"""Time to live on every store: what has outlived its time is dead about then, wherever it waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import emq
from emq.topics.model import State
from support.store_apps import STORES, app_on
from support.waiting import until

LATE_S = 2.5
"""How late a message may be found on a busy machine: about a second is promised, and looking takes its time."""

TTL_S = 1.5
KINDS: dict[str, dict[str, Any]] = {
    "log": {},
    "range_merge": {"kind": "range_merge", "slots": 1, "merge": "key", "time_range_ms": 1},
    "priority": {"kind": "priority", "slots": 1, "merge": "key"},
}


@pytest.fixture(params=STORES)
async def app(request: pytest.FixtureRequest, tmp_path: Path, names: str) -> AsyncIterator[emq.App]:
    async with app_on(request, tmp_path, names) as app:
        yield app


async def letters(app: emq.App, topic: str) -> dict[bytes, float]:
    """When what died of a topic did so, by payload, in seconds since the epoch."""
    found = [letter async for letter in app.dead_letters(topic)]
    assert {letter.reason for letter in found} <= {"expired"}
    return {letter.payload: letter.dead_ms / 1000 for letter in found}


async def test_what_expires_is_dead_about_its_time_behind_others_paused_and_unhandled(app: emq.App, names: str) -> None:
    places = [(kind, state) for kind in KINDS for state in ("behind", "paused", "unhandled")]
    started: list[bytes] = []
    published: list[float] = []  # before and after the publishes to each place

    async def handler(m: emq.Message) -> None:
        started.append(m.payload)

    for kind, state in places:
        topic = f"{names}-{kind}-{state}"
        await app.create_topic(topic, qps=1 if state == "behind" else 50, **KINDS[kind])
        if state != "unhandled":
            app.handler(topic)(handler)
        if state == "paused":
            await app.catalog.update(topic, state=State.PAUSED)
        when = {"priority": 100} if kind == "priority" else {}
        each = {"merge_keys": [b"%d" % i for i in range(60)]} if kind != "log" else {}
        await app.publish_many(topic, [b"patient"] * 60, **when, **each)
    async with app.running():
        await asyncio.sleep(1.5)
        for kind, state in places:
            topic = f"{names}-{kind}-{state}"
            when = {"priority": 20} if kind == "priority" else {}
            published.append(time.time())
            await app.publish(topic, f"brief {kind} {state}", ttl_s=TTL_S, **when)
            if kind == "log":
                await app.publish(topic, f"delayed {state}", delay_ms=500, ttl_s=TTL_S - 0.5)
            published.append(time.time())
        wrong: dict[str, tuple[float, float]] = {"not looked yet": (0.0, 0.0)}
        while wrong and time.time() < published[-1] + TTL_S + LATE_S:
            await asyncio.sleep(0.3)
            wrong = {}
            for (kind, state), before, after in zip(places, published[::2], published[1::2], strict=True):
                dead = await letters(app, f"{names}-{kind}-{state}")
                for payload in (f"brief {kind} {state}", *([f"delayed {state}"] if kind == "log" else [])):
                    at = dead.get(payload.encode(), float("inf")) - TTL_S
                    if not before - 0.2 < at < after + LATE_S:
                        wrong[payload] = (at - before, at - after)
        assert wrong == {}
    assert not [payload for payload in started if b"patient" not in payload]


async def test_each_message_that_expired_is_told_once_it_is_dead_also_of_a_topic_that_is_paused(
    app: emq.App, names: str
) -> None:
    told: dict[str, list[bytes]] = {}
    given: list[bytes] = []

    async def handle(m: emq.Message) -> None:
        given.append(m.payload)
        raise emq.Retry(after_s=60)

    for kind in KINDS:
        topic, found = f"{names}-{kind}", told.setdefault(kind, [])
        await app.create_topic(topic, qps=50, **KINDS[kind])

        def note(m: emq.Message, found: list[bytes] = found) -> None:
            found.append(m.payload)
            raise ValueError("the host lives on")

        app.handler(topic, on_expired=note)(handle)
        when = {"priority": 20} if kind == "priority" else {}
        await app.publish(topic, f"fails {kind}", ttl_s=3.0, **when)
    async with app.running():
        await until(lambda: len(given) >= len(KINDS))
        for kind in KINDS:
            await app.catalog.update(f"{names}-{kind}", state=State.PAUSED)
        await until(lambda: all(told.values()))
        await asyncio.sleep(1.5)
        dead = {kind: list(await letters(app, f"{names}-{kind}")) for kind in KINDS}
    assert told == {kind: [f"fails {kind}".encode()] for kind in KINDS}
    assert dead == told


async def test_a_cancellation_that_on_expired_raises_stops_no_settling(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def on_expired(m: emq.Message) -> None:
        raise asyncio.CancelledError("planted")

    async def handle(m: emq.Message) -> None:
        """Never called."""

    async with emq.App(f"sqlite:///{tmp_path}/emq.db") as app:
        await app.create_topic("t", qps=100)
        app.handler("t", on_expired=on_expired)(handle)
        await app.publish("t", b"x", ttl_s=0.01)
        await asyncio.sleep(0.05)
        async with app.running():
            await until(lambda: "its on_expired failed: CancelledError: planted" in caplog.text)
        assert sum(lag.unfinished for lag in await app.admin.lag([await app.catalog.get("t")])) == 0
    assert "broke" not in caplog.text


async def test_a_backlog_that_expired_goes_at_once_whatever_the_topics_quota(app: emq.App, names: str) -> None:
    number = 4_000
    told: list[str] = []
    begun: list[float] = []
    await app.create_topic(names, qps=2)

    async def handle(m: emq.Message) -> None:
        begun.append(time.monotonic())

    app.handler(names, on_expired=lambda m: told.append(m.id))(handle)
    await app.publish_many(names, [b"brief"] * number, ttl_s=0.1)
    await app.publish(names, b"patient")
    await asyncio.sleep(0.2)  # now all have expired
    async with app.running():
        started = time.monotonic()
        await until(lambda: begun)
    assert len(told) == len(set(told)) == number
    assert begun[0] - started < 15
