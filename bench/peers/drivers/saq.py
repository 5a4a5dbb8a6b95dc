"""saq: a queue for all tenants; several worker processes that keep no results."""

from __future__ import annotations

import asyncio
from typing import Any

import uvloop
from saq import Queue, Worker

from bench.peers.drivers import common
from bench.peers.drivers.common import ORDERS


async def handle(_: dict[str, Any], *, message: str) -> None:
    await common.handle_async(message)


async def publish() -> None:
    queue = Queue.from_url(ORDERS.url)
    await queue.connect()

    async def call(batch: list[int]) -> None:
        await queue.enqueue("handle", message=common.payload(batch[0]), ttl=-1, timeout=0)

    await common.publish_together(call, at_once=50)
    await queue.disconnect()


async def work() -> None:
    queue = Queue.from_url(ORDERS.url)
    await queue.connect()
    await Worker(queue, functions=[("handle", handle)], concurrency=ORDERS.in_flight // ORDERS.processes).start()


if __name__ == "__main__":
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    if ORDERS.role == "publish":
        asyncio.run(publish())
    else:
        common.each_process(lambda: asyncio.run(work()))
