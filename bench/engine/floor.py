"""Speed of the bare client on this machine, which no consumer built on the client can exceed.

The reading loop reads many queues with one Lua call, decodes the messages and calls an empty handler, while the next
read is under way. The appending loop appends 500 messages with one Lua call; two calls are under way at once.
"""

from __future__ import annotations

import asyncio
import importlib.resources
import time
from collections.abc import Sequence
from typing import Any

import redis.asyncio

from bench.support.backlog import PAYLOAD, fill, queues_of
from bench.support.figures import Benchmark
from bench.support.stage import Stage, unlimited_topics
from emq.runtime import plurals
from emq.storage import message
from emq.topics.model import Topic, split

READ_MESSAGES = 2_000
PUT_MESSAGES = 500
PUT_LISTS = ("floor:1", "floor:2")


async def handler(_: message.Message) -> None:
    pass


async def read_floor(url: str, topics: list[Topic], per_queue: int) -> float:
    """Return the messages a second of the bare reading loop over a backlog; the loop removes nothing."""
    lists = [f"{{emq:online:0}}:log:{queue}" for queue in queues_of(topics)]
    limit = min(per_queue, 500)
    return await read_lists(url, lists, per_queue, limit, max(1, READ_MESSAGES // limit))


async def read_lists(url: str, lists: Sequence[str], per_list: int, limit: int, width: int = 1) -> float:
    """Return the messages a second of the bare reading loop: `limit` messages of `width` lists in each call."""
    client = redis.asyncio.Redis.from_url(url.partition("?")[0])
    script = script_of(client, "floor_read")
    calls = [(lists[i : i + width], at) for at in range(0, per_list, limit) for i in range(0, len(lists), width)]
    started, total = time.perf_counter(), 0
    waiting: asyncio.Future[Any] = asyncio.ensure_future(_read(script, *calls[0], limit))
    for call in [*calls[1:], None]:
        answer: Sequence[Sequence[bytes]] = await waiting
        if call is not None:
            waiting = asyncio.ensure_future(_read(script, *call, limit))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        for bodies in answer:
            for body in bodies:
                await handler(message.decode(body))
            total += len(bodies)
    took = time.perf_counter() - started
    await client.aclose()
    return total / took


async def put_floor(url: str, total: int, payload: bytes = PAYLOAD, together: int = PUT_MESSAGES) -> float:
    """Return the messages a second of the bare appending loop, which leaves them in the lists `PUT_LISTS`."""
    client = redis.asyncio.Redis.from_url(url.partition("?")[0])
    script = script_of(client, "floor_put")
    ids = message.IdSource()

    async def appender(key: str) -> None:
        for _ in range(total // len(PUT_LISTS) // together):
            bodies = [message.encode(ids.next(), payload, None, 1, None) for _ in range(together)]
            await script(keys=[key], args=bodies)

    started = time.perf_counter()
    await asyncio.gather(*map(appender, PUT_LISTS))
    took = time.perf_counter() - started
    await client.aclose()
    return total / took


async def _read(script: Any, lists: Sequence[str], at: int, limit: int) -> Any:
    return await script(keys=lists, args=[at, at + limit - 1] * len(lists))


def script_of(client: redis.asyncio.Redis, name: str) -> Any:
    """Return the script of that name, to be called through the client."""
    return client.register_script(importlib.resources.files(__package__).joinpath(f"{name}.lua").read_text())


async def run(stage: Stage, *, queues: int, messages: int) -> dict[str, Any]:
    topics = [split(t) for t in unlimited_topics(queues)]
    per_queue = max(1, messages // queues)
    stage.say(f"filling {plurals.count(queues, 'queue')} with {plurals.count(per_queue, 'message')} each")
    await stage.elsewhere(fill, stage.url, topics, per_queue)
    read = [await read_floor(stage.url, topics, per_queue) for _ in range(3)]
    put = [await put_floor(stage.url, messages // 4) for _ in range(3)]
    return {"log_read_per_s": sorted(read)[1], "log_put_per_s": sorted(put)[1]}


BENCHMARK = Benchmark(
    run,
    options=(("queues", 3_000, "physical queues"), ("messages", 1_500_000, "backlog in all")),
    stores=("redis",),
)
