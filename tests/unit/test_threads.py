"""Plain functions in threads: shared fairly, and replaced when they hang."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from emq.host.handlers import Handlers, with_timeout
from emq.quota.places.places import Places
from emq.quota.places.threads import REPLACE_S, Threads
from emq.runtime import errors


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What hanging functions wait for; open at the end, so that no thread outlives its test."""
    event = threading.Event()
    yield event
    event.set()


async def returned(call: Any, within_s: float = 5.0) -> Any:
    return await asyncio.wait_for(call, within_s)


async def test_slow_functions_of_one_topic_leave_threads_to_the_others(gate: threading.Event) -> None:
    handlers = Handlers(threads=8)
    handlers.bind("slow", lambda m: gate.wait(60))
    handlers.bind("*", lambda m: m.topic)
    slow, others = handlers.find("slow"), handlers.find("other")
    assert slow is not None
    assert others is not None
    await others.call(SimpleNamespace(topic="other-0"))
    hanging = [asyncio.create_task(slow.call(SimpleNamespace(topic="slow"))) for _ in range(100)]
    await asyncio.sleep(0)
    for i in range(20):
        assert await returned(others.call(SimpleNamespace(topic=f"other-{i}")), REPLACE_S / 2) == f"other-{i}"
    gate.set()
    await asyncio.gather(*hanging)
    handlers.close()


async def test_functions_of_many_topics_that_hang_are_replaced_by_other_threads(gate: threading.Event) -> None:
    threads = Threads(4, "test", spare=64)
    hanging = [asyncio.create_task(threads.run(f"hung-{i}", gate.wait, 60)) for i in range(12)]
    await asyncio.sleep(0)
    assert await returned(threads.run("well", str, 1), 4 * REPLACE_S) == "1"
    gate.set()
    await asyncio.gather(*hanging)


async def test_a_timeout_gives_the_place_of_a_function_that_hangs_to_another(gate: threading.Event) -> None:
    handlers = Handlers(threads=2)
    handlers.bind("hung", lambda m: gate.wait(60))
    handlers.bind("well", lambda m: "done")
    hung, well = handlers.find("hung"), handlers.find("well")
    assert hung is not None
    assert well is not None
    timed = with_timeout(hung.call, 0.05)
    for _ in range(3):
        with pytest.raises(errors.Retry, match="took longer"):
            await returned(timed(SimpleNamespace(topic="hung")))
    assert await returned(well.call(SimpleNamespace(topic="well")), REPLACE_S / 2) == "done"


async def test_spare_threads_are_bounded(gate: threading.Event) -> None:
    threads = Threads(2, "bounded", spare=6)
    calls = [asyncio.create_task(threads.run(f"hung-{i}", gate.wait, 60)) for i in range(40)]
    for _ in range(40):
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        calls = [asyncio.create_task(threads.run(f"hung-{i}", gate.wait, 60)) for i in range(40)]
        await asyncio.sleep(0)
    assert sum(thread.name.startswith("bounded-") for thread in threading.enumerate()) <= 8
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


async def test_idle_threads_are_used_again_and_surplus_ones_end(gate: threading.Event) -> None:
    threads = Threads(3, "again")
    for _ in range(50):
        await asyncio.gather(*[threads.run("t", str, i) for i in range(10)])
    assert sum(thread.name.startswith("again-") for thread in threading.enumerate()) <= 3
    threads.close()


async def test_what_nobody_expects_costs_no_place() -> None:
    threads = Threads(1, "test")
    with mock.patch("threading.Thread.start", side_effect=RuntimeError), pytest.raises(RuntimeError):
        await returned(threads.run("a", str, 1))
    with mock.patch.object(Places, "_serve", side_effect=KeyError), pytest.raises(KeyError):
        await returned(threads.run("a", str, 1))
    with mock.patch.object(Places, "free", side_effect=KeyError):
        assert await returned(threads.run("a", str, 1)) == "1"
    threads._places.free("a", 0)
    assert await returned(threads.run("a", str, 2)) == "2"
    threads.close()


async def test_a_function_that_fails_raises_and_gives_its_place_back() -> None:
    threads = Threads(1, "fails")
    for _ in range(3):
        with pytest.raises(ValueError, match="invalid literal"):
            await returned(threads.run("t", int, "no number"))
    waiting = asyncio.create_task(threads.run("t", str, 1))
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    assert await returned(threads.run("t", str, 1)) == "1"


def test_another_event_loop_finds_all_places_free(gate: threading.Event) -> None:
    threads = Threads(1, "loops")

    async def hang() -> None:
        call = asyncio.create_task(threads.run("t", gate.wait, 60))
        await asyncio.sleep(0.05)
        call.cancel()

    asyncio.run(hang())
    assert asyncio.run(returned(threads.run("t", str, 1))) == "1"
