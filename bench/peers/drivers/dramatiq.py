"""dramatiq: a queue for each tenant; several worker processes with threads, and no middleware."""

from __future__ import annotations

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from redis import ConnectionPool, Redis

from bench.peers.drivers import common
from bench.peers.drivers.common import ORDERS

pool = ConnectionPool.from_url(ORDERS.url, max_connections=common.CONNECTIONS)
broker = RedisBroker(client=Redis(connection_pool=pool), middleware=[])
dramatiq.set_broker(broker)
actors = {
    queue: dramatiq.actor(common.handle, actor_name=f"handle-{queue}", queue_name=common.queue_name(queue))
    for queue in ORDERS.all_queues
}


if __name__ == "__main__":
    if ORDERS.role == "publish":
        common.publish(lambda number: actors[ORDERS.queue_of(number)].send(common.payload(number)))
    else:
        threads = min(ORDERS.in_flight, 400) // ORDERS.processes if ORDERS.wait_s else 8
        processes = str(ORDERS.processes)
        common.instead("dramatiq", "bench.peers.drivers.dramatiq", "--processes", processes, "--threads", str(threads))
