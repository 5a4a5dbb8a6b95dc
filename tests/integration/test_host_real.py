"""The public face with real time, real threads and a shared memory store."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import emq
from emq_stores.memory import forget
from support.waiting import until

NAME = "test-host-real"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[str, str]]:
    yield f"memory://{NAME}", f"sqlite:///{tmp_path}/catalog.db"
    forget(NAME)


def open_app(place: tuple[str, str]) -> emq.App:
    return emq.App(place[0], database=place[1], options=emq.Settings(checkpoint_s=0.1))


async def test_plain_functions_run_in_threads_and_do_not_hold_up_coroutines(place: tuple[str, str]) -> None:
    threads: set[str] = set()
    late: list[float] = []
    app = open_app(place)

    @app.handler("slow")
    def slow(m: emq.Message) -> None:
        threads.add(threading.current_thread().name)
        time.sleep(0.05)
        if m.payload == b"bad" and m.attempt == 1:
            raise ValueError("bad")

    @app.handler("quick")
    async def quick(m: emq.Message) -> None:
        late.append(time.time() - m.published_us / 1e6)

    async with app:
        await app.create_topic("slow", 100, backoff_s=[0.05])
        await app.create_topic("quick", 100)
        run = asyncio.create_task(app.run())
        await app.publish_many("slow", [b"bad"] * 5 + [b"good"] * 25)
        await asyncio.sleep(1.1)  # into the first second with quota
        for _ in range(20):
            await app.publish("quick", b"x")
            await asyncio.sleep(0.01)
        assert app.host is not None
        host = app.host
        await until(lambda: host.work.endings.succeeded == 50)
        app.stop()
        await run
        assert [x.unfinished for x in await app.admin.lag([await app.catalog.get("slow")])] == [0, 0, 0]
    assert host.work.endings.failed == 5
    assert len(threads) > 1
    assert all(name.startswith("emq-handler") for name in threads)
    assert max(late) < 0.5


async def test_a_signal_stops_cleanly_and_the_next_host_goes_on_where_it_ended(place: tuple[str, str]) -> None:
    started: list[tuple[str, int, int]] = []

    async def handle(m: emq.Message) -> None:
        started.append((m.id, m.attempt, m.started_us))
        await asyncio.sleep(0.01)

    sent: list[str] = []
    for life in range(2):
        app = open_app(place)
        app.handler("*")(handle)
        async with app:
            if life == 0:
                await app.create_topic("orders", 40)
                sent = await app.publish_many("orders", [b"x"] * 60)
            run = asyncio.create_task(app.run_until_signal())
            await until(lambda n=life: len(started) >= (60 if n else 30))  # type: ignore[misc]
            os.kill(os.getpid(), signal.SIGTERM)
            async with asyncio.timeout(5):
                await run
    assert sorted(id_ for id_, _, _ in started) == sorted(sent)
    assert max(Counter(us // 1_000_000 for _, _, us in started).values()) <= 40
