"""The bare loop of the benchmark of waiting handlers does what it is compared for."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from bench.engine.waiting import in_tasks, made
from bench.support.stage import unlimited_topics
from emq.storage.message import Message


@pytest.mark.parametrize("most", [1, 7, 100])
async def test_the_bare_loop_has_one_task_for_each_message_and_so_many_at_once(most: int) -> None:
    messages = made(unlimited_topics(300), 50)
    calls: Counter[str] = Counter()
    tasks: set[asyncio.Task[object] | None] = set()
    running = most_running = 0

    async def handle(message: Message) -> None:
        nonlocal running, most_running
        tasks.add(asyncio.current_task())
        calls[message.id] += 1
        running += 1
        most_running = max(most_running, running)
        await asyncio.sleep(0)
        running -= 1

    await in_tasks(handle, messages, most)
    assert calls == Counter(message.id for message in messages)
    assert len(tasks) == 50
    assert most_running == min(most, 50)
    assert running == 0
