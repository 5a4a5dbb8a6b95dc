"""EMQ: one process, a family of topics, one handler for the family."""

from __future__ import annotations

from collections.abc import Sequence

import uvloop

import emq
from bench.peers.drivers import common
from bench.peers.drivers.common import ORDERS

UNLIMITED = 1_000_000

BATCH, AT_ONCE = 50, 90
"""Most messages that a call publishes to a topic, where there are many topics; and how many calls at a time."""

ROUNDS = 5
"""Each topic gets its messages in this many batches or more, so that all have some if publishing is cut."""


def app() -> emq.App:
    """Return an app with the family, as both the publisher and the worker have it."""
    made = emq.App(
        f"{ORDERS.url}?max_queue_qps={UNLIMITED}",
        database=f"sqlite:///{ORDERS.directory}/catalog.db",
        options=emq.Settings(max_in_flight=max(ORDERS.in_flight, 1)),
    )
    made.family("t-*", qps=ORDERS.cap or UNLIMITED, group_qps=UNLIMITED, priorities=("only",))
    return made


async def publish() -> None:
    async with app() as opened:

        async def many(batch: Sequence[int]) -> None:
            await opened.publish_many(common.queue_name(ORDERS.queue_of(batch[0])), common.texts(batch))

        async def one(batch: Sequence[int]) -> None:
            await opened.publish(common.queue_name(ORDERS.queue_of(batch[0])), common.payload(batch[0]))

        # Publishes that are awaited together share a call to the store, whatever their topics.
        if ORDERS.per_s or ORDERS.messages == ORDERS.queues:
            await common.publish_together(one, at_once=1_000)
        elif ORDERS.queues == 1:
            await common.publish_together(many, size=5_000, at_once=2)
        else:
            size = max(1, min(BATCH, ORDERS.messages // ORDERS.queues // ROUNDS))
            await common.publish_together(many, size=size, at_once=AT_ONCE)


async def work() -> None:
    made = app()
    if ORDERS.wait_s or ORDERS.log:

        @made.handler("t-*")
        async def handle(message: emq.Message) -> None:
            await common.handle_async(message.payload.decode())
    else:

        @made.handler("t-*")
        async def count(message: emq.Message) -> None:
            common.begun("")

    async with made:
        await made.run_until_signal()


if __name__ == "__main__":
    uvloop.run(publish() if ORDERS.role == "publish" else work())
