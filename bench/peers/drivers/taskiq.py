"""taskiq: a stream for all tenants, read in batches; several worker processes; no results."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import uvloop
from taskiq_redis import RedisStreamBroker

from bench.peers.drivers import common
from bench.peers.drivers.common import ORDERS

broker = RedisStreamBroker(ORDERS.url, consumer_id="0", xread_count=1000, max_connection_pool_size=common.CONNECTIONS)


@broker.task(task_name="handle")
async def handle(message: str) -> None:
    await common.handle_async(message)


async def publish() -> None:
    await broker.startup()

    async def call(batch: Sequence[int]) -> None:
        await handle.kiq(common.payload(batch[0]))

    await common.publish_together(call, at_once=50)
    await broker.shutdown()


if __name__ == "__main__":
    if ORDERS.role == "publish":
        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
        asyncio.run(publish())
    else:
        common.instead(
            "taskiq",
            *("worker", "bench.peers.drivers.taskiq:broker", "--workers", str(ORDERS.processes)),
            *("--max-async-tasks", str(ORDERS.in_flight // ORDERS.processes), "--max-prefetch", "1000"),
            *("--log-level", "ERROR"),
        )
