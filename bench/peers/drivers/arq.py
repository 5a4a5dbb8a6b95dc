"""arq: a queue for all tenants; worker processes that keep no results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from arq import Worker, create_pool, func
from arq.connections import RedisSettings

from bench.peers.drivers import common
from bench.peers.drivers.common import ORDERS

FEW = 100
"""Messages at a time of a handler that does not wait; with more, arq is slower."""

SETTINGS = RedisSettings.from_dsn(ORDERS.url)


async def handle(_: dict[str, Any], message: str) -> None:
    await common.handle_async(message)


async def publish() -> None:
    pool = await create_pool(SETTINGS)

    async def call(batch: Sequence[int]) -> None:
        await pool.enqueue_job("handle", common.payload(batch[0]))

    await common.publish_together(call, at_once=50)


async def work() -> None:
    worker = Worker(
        functions=[func(handle, name="handle", keep_result=0)],
        redis_settings=SETTINGS,
        max_jobs=ORDERS.in_flight // ORDERS.processes if ORDERS.wait_s else FEW,
        poll_delay=0.05,
        keep_result=0,
        handle_signals=False,
    )
    await worker.async_run()


if __name__ == "__main__":
    # Without a wait, two processes are no faster than one: they try to take the same messages.
    common.publish_or_work(publish, work, None if ORDERS.wait_s else 1)
