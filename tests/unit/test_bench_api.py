"""The callers of the API benchmark count what they are shown."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from bench.engine.api import Caller, calling


@pytest.mark.parametrize("at_once", [1, 7])
async def test_each_call_is_timed_once_and_each_failure_counted(at_once: int) -> None:
    calls = running = most = 0

    async def call(_: aiohttp.ClientSession) -> bool:
        nonlocal calls, running, most
        calls += 1
        number, running = calls, running + 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return number % 3 != 0

    found = await calling(Caller("http://127.0.0.1:1", {}, at_once, 30), call)
    assert calls == len(found.waits_ms) == 30
    assert found.failed == 10
    assert most == at_once
    assert found.per_s > 0
