"""Celery: a queue for each tenant; worker processes that prefetch, or threads for handlers that wait; no results."""

from __future__ import annotations

from typing import Any

from celery import Celery

from bench.peers.drivers import common
from bench.peers.drivers.common import ORDERS

app = Celery("bench.peers.drivers.celery", broker=ORDERS.url)
app.conf.update(
    task_ignore_result=True,
    task_create_missing_queues=True,
    worker_prefetch_multiplier=128,
    worker_disable_rate_limits=not ORDERS.cap,
    broker_connection_retry_on_startup=True,
    # One list for each queue instead of four: nobody here has priorities.
    broker_transport_options={"priority_steps": [0]},
    task_routes=None,
)


def _task(name: str) -> Any:
    options = {"rate_limit": f"{ORDERS.cap}/s"} if ORDERS.cap else {}
    return app.task(common.handle, name=name, shared=False, **options)


# A cap belongs to a task, so each capped queue has a task of its own.
tasks = {queue: _task(f"handle-{queue}") for queue in ORDERS.all_queues} if ORDERS.cap else {}
single = _task("handle")


def publish() -> None:
    with app.producer_pool.acquire(block=True) as producer:

        def call(number: int) -> None:
            queue = ORDERS.queue_of(number)
            tasks.get(queue, single).apply_async(
                (common.payload(number),), queue=common.queue_name(queue), producer=producer
            )

        common.publish(call)


if __name__ == "__main__":
    if ORDERS.role == "publish":
        publish()
    else:
        waits = bool(ORDERS.wait_s)
        common.instead(
            "celery",
            *("-A", "bench.peers.drivers.celery", "worker", "-l", "ERROR"),
            *("-P", "threads" if waits else "prefork"),
            *("-c", str(min(ORDERS.in_flight, 400) if waits else ORDERS.processes)),
            *("-Q", ",".join(map(common.queue_name, ORDERS.all_queues))),
            *("--without-gossip", "--without-mingle", "--without-heartbeat"),
        )
