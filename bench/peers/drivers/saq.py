"""saq: a queue for all tenants; several worker processes that keep no results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis
from saq import Worker
from saq.queue.redis import RedisQueue

from bench.peers.drivers import common
from bench.peers.drivers.common import ORDERS

FEW = 20
"""Messages at a time of a handler that does not wait; with more, saq is slower."""


def opened() -> RedisQueue:
    return RedisQueue(Redis.from_url(ORDERS.url, max_connections=common.CONNECTIONS))


async def handle(_: dict[str, Any], *, message: str) -> None:
    await common.handle_async(message)


async def publish() -> None:
    queue = opened()
    await queue.connect()

    async def call(batch: Sequence[int]) -> None:
        await queue.enqueue("handle", message=common.payload(batch[0]), ttl=-1, timeout=0)

    await common.publish_together(call, at_once=50)
    await queue.disconnect()


async def work() -> None:
    queue = opened()
    await queue.connect()
    concurrency = ORDERS.in_flight // ORDERS.processes if ORDERS.wait_s else FEW
    await Worker(queue, functions=[("handle", handle)], concurrency=concurrency).start()


if __name__ == "__main__":
    common.publish_or_work(publish, work)
