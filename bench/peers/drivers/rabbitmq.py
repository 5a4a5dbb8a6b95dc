"""RabbitMQ: a durable classic queue for each tenant; several processes with a channel each, and a prefetch."""

from __future__ import annotations

import pika

from bench.peers.drivers import common
from bench.peers.drivers.common import ORDERS

PREFETCH = 1000


def publish() -> None:
    connection = pika.BlockingConnection(pika.URLParameters(ORDERS.url))
    channel = connection.channel()
    for queue in ORDERS.all_queues:
        channel.queue_declare(common.queue_name(queue), durable=True)

    def call(number: int) -> None:
        channel.basic_publish("", common.queue_name(ORDERS.queue_of(number)), common.payload(number).encode())

    common.publish(call)
    connection.close()


def work() -> None:
    connection = pika.BlockingConnection(pika.URLParameters(ORDERS.url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=PREFETCH, global_qos=True)

    def handle(_: object, method: pika.spec.Basic.Deliver, __: object, body: bytes) -> None:
        message = body.decode()
        common.begun(message)
        if not ORDERS.wait_s:
            common.ended(message)
            channel.basic_ack(method.delivery_tag)
            return

        def finish() -> None:
            common.ended(message)
            channel.basic_ack(method.delivery_tag)

        connection.call_later(ORDERS.wait_s, finish)

    for queue in ORDERS.all_queues:
        channel.queue_declare(common.queue_name(queue), durable=True)
        channel.basic_consume(common.queue_name(queue), handle)
    channel.start_consuming()


if __name__ == "__main__":
    publish() if ORDERS.role == "publish" else common.each_process(work)
