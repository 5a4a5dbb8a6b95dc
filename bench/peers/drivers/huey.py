"""huey: a queue for all tenants; worker processes without results, or threads for handlers that wait."""

from __future__ import annotations

from huey import RedisHuey
from redis import ConnectionPool

from bench.peers.drivers import common
from bench.peers.drivers.common import ORDERS

pool = ConnectionPool.from_url(ORDERS.url, max_connections=common.CONNECTIONS)
huey = RedisHuey("peers", connection_pool=pool, results=False, store_none=False)


@huey.task(name="handle")
def handle(message: str) -> None:
    common.handle(message)


if __name__ == "__main__":
    if ORDERS.role == "publish":
        # The task's name begins with that of its module, which is not `__main__` for the consumer.
        from bench.peers.drivers.huey import handle as known

        common.publish(lambda number: known(common.payload(number)))
    else:
        waits = bool(ORDERS.wait_s)
        workers = min(ORDERS.in_flight, 200) if waits else ORDERS.processes
        kind = "thread" if waits else "process"
        common.instead("huey_consumer", "bench.peers.drivers.huey.huey", "-q", "-n", "-w", str(workers), "-k", kind)
