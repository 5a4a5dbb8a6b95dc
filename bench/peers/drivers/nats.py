"""NATS JetStream: one stream in memory, a subject for each tenant; several processes, a group of push consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import nats
from nats.aio.msg import Msg
from nats.js.api import ConsumerConfig, StorageType, StreamConfig

from bench.peers.drivers import common
from bench.peers.drivers.common import ORDERS

STREAM, SUBJECTS, GROUP = "peers", "peers.*", "workers"


async def publish() -> None:
    client = await nats.connect(ORDERS.url)
    stream = client.jetstream()
    await stream.add_stream(StreamConfig(STREAM, subjects=[SUBJECTS], storage=StorageType.MEMORY))

    async def call(batch: Sequence[int]) -> None:
        await stream.publish(f"peers.{ORDERS.queue_of(batch[0])}", common.payload(batch[0]).encode(), timeout=30)

    await common.publish_together(call, at_once=500)
    await client.close()


async def work() -> None:
    client = await nats.connect(ORDERS.url)
    running: set[asyncio.Task[None]] = set()

    async def one(message: Msg) -> None:
        await common.handle_async(message.data.decode())
        await message.ack()

    async def handle(message: Msg) -> None:
        if not ORDERS.wait_s:
            await one(message)
            return
        # The client awaits one callback at a time, so a handler that waits gets a task of its own.
        task = asyncio.create_task(one(message))
        running.add(task)
        task.add_done_callback(running.discard)

    most = ORDERS.in_flight if ORDERS.wait_s else 20_000
    config = ConsumerConfig(max_ack_pending=most, ack_wait=30)
    await client.jetstream().subscribe(SUBJECTS, GROUP, cb=handle, manual_ack=True, config=config)
    await asyncio.Event().wait()


if __name__ == "__main__":
    common.publish_or_work(publish, work)
