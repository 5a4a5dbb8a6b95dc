"""Stores with messages in them, for tests of the data source."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from emq.app import App
from emq.storage import message
from emq.storage.log_store import Batch, Read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")


class Data:
    """A store and its database, opened anew for each thing that is done, as Spark's workers do.

    Attributes:
        options: of the data source.
    """

    def __init__(self, store: str, database: str) -> None:
        self.options = {"store": store, "database": database}

    def do(self, what: Callable[[App], Awaitable[T]]) -> T:
        async def done() -> T:
            async with App(self.options["store"], database=self.options["database"]) as app:
                return await what(app)

        return asyncio.run(done())

    def create(self, topic: str, qps: float = 100, **options: object) -> None:
        self.do(lambda app: app.create_topic(topic, qps, exist_ok=True, **options))

    def publish(self, topic: str, numbers: range, **options: object) -> None:
        """Publish the numbers as text, each under the key `k<number % 7>`."""
        payloads, keys = [b"%d" % n for n in numbers], [f"k{n % 7}" for n in numbers]
        self.do(lambda app: app.publish_many(topic, payloads, keys=keys, **options))

    def messages(self, topic: str) -> list[message.Message]:
        """What lies in the topic's queues, read without Spark."""

        async def found(app: App) -> list[message.Message]:
            queues = (await app.catalog.get(topic)).all_queues()
            batches = await app.store.log.read([Read(q, 1, 100_000, None) for q in queues], 1 << 30)
            return [message.decode(body) for b in batches if isinstance(b, Batch) for body in b.bodies]

        return self.do(found)

    def read(self, spark: SparkSession, **options: object) -> DataFrame:
        reader = spark.read.format("emq").options(**self.options)
        return reader.options(**{name: str(value) for name, value in options.items()}).load()
