"""RQ: a queue for each tenant; a pool of workers that do not fork for each job."""

from __future__ import annotations

from redis import Redis
from rq import Queue, SimpleWorker, Worker
from rq.worker_pool import WorkerPool

from bench.peers.drivers import common
from bench.peers.drivers.common import ORDERS

handle = common.handle


def publish() -> None:
    connection = Redis.from_url(ORDERS.url)
    queues = {queue: Queue(common.queue_name(queue), connection=connection) for queue in ORDERS.all_queues}

    def call(batch: list[int]) -> None:
        with connection.pipeline() as pipeline:
            for number in batch:
                job = Queue.prepare_data(
                    "bench.peers.drivers.rq.handle",
                    args=(common.payload(number),),
                    result_ttl=0,
                    timeout=-1,
                )
                queues[ORDERS.queue_of(number)].enqueue_many([job], pipeline=pipeline)
            pipeline.execute()

    common.publish_batches(call)


def work() -> None:
    connection = Redis.from_url(ORDERS.url)
    names = [common.queue_name(queue) for queue in ORDERS.all_queues]
    # Several processes only where they wait: each one works on one message at a time.
    workers = min(ORDERS.in_flight, 50) if ORDERS.wait_s else ORDERS.processes
    kind: type[Worker] = SimpleWorker
    WorkerPool(names, connection=connection, num_workers=workers, worker_class=kind).start(logging_level="WARNING")


if __name__ == "__main__":
    publish() if ORDERS.role == "publish" else work()
