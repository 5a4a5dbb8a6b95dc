"""beanstalkd: a tube for each tenant; several processes watch all tubes, with threads for handlers that wait."""

from __future__ import annotations

import threading
import urllib.parse

import greenstalk

from bench.peers.drivers import common
from bench.peers.drivers.common import ORDERS

PARTS = urllib.parse.urlsplit(ORDERS.url)
ADDRESS = (str(PARTS.hostname), int(PARTS.port or 0))
HANDLERS = 100
"""Threads, each with a connection of its own, for handlers that wait."""


def publish() -> None:
    client = greenstalk.Client(ADDRESS)
    used = -1

    def call(number: int) -> None:
        nonlocal used
        if used != ORDERS.queue_of(number):
            used = ORDERS.queue_of(number)
            client.use(common.queue_name(used))
        client.put(common.payload(number))

    common.publish(call)
    client.close()


def consume() -> None:
    client = greenstalk.Client(ADDRESS, watch=[common.queue_name(queue) for queue in ORDERS.all_queues])
    while True:
        job = client.reserve()
        common.handle(str(job.body))
        client.delete(job)


def work() -> None:
    threads = max(1, min(ORDERS.in_flight // ORDERS.processes, HANDLERS)) if ORDERS.wait_s else 1
    for _ in range(threads - 1):
        threading.Thread(target=consume, daemon=True).start()
    consume()


if __name__ == "__main__":
    publish() if ORDERS.role == "publish" else common.each_process(work)
