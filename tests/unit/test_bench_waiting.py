"""The bare loop of the benchmark of waiting handlers does what it is compared for."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from bench.engine.waiting import Cost, compared, in_tasks, made
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


def test_each_host_is_compared_with_the_bare_loop_of_its_own_round() -> None:
    bares, hosts = [Cost(1.0, 2.0), Cost(2.0, 2.0), Cost(9.0, 3.0)], [Cost(4.0, 4.0), Cost(4.0, 5.0), Cost(10.0, 4.0)]
    figures = compared("t", bares, [Cost(bare.us / 2, 1.0) for bare in bares], hosts)
    assert (figures["t_ratio"], figures["t_cpu_ratio"]) == (0.5, 0.5)
    assert figures["t_same_ratio"] == 0.25
    assert figures["t_per_s"] == 250_000
    assert (figures["t_cpu_us"], figures["t_bare_cpu_us"]) == (4.0, 2.0)
