"""A store and a database with a family, for the tests of families on all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from emq.database import Database
from emq.observe.admin import Admin
from emq.observe.families import Families
from emq.offsets.checkpoints import Checkpoint, CheckpointStore
from emq.offsets.sleep import put_to_sleep
from emq.producer import Producer
from emq.storage.answers import served
from emq.storage.store import Store
from emq.topics.catalog import Catalog
from emq.topics.families import IDLE_S, Bounds, Family
from emq.topics.model import Topic, TopicOptions
from support.rig import ENVIRONMENT

NAMES = [f"n{i}" for i in range(20)]


class Place:
    """A store and a database, with a family `<topic>.*`, as several processes see them.

    Attributes:
        catalog: of whoever puts topics to sleep.
    """

    def __init__(self, db: Database, store: Store, topic: str) -> None:
        self._db = db
        self.store = store
        self.prefix = f"{topic}."
        self.family = f"{self.prefix}*"
        self.catalog = self.other_catalog()
        self.checkpoints = CheckpointStore(db, ENVIRONMENT)
        self.admin = Admin(self.catalog, store, self.checkpoints, self._next_epoch)
        self.families = Families(self.catalog, self.admin)
        self.producer = Producer(store, self.other_catalog())

    def other_catalog(self) -> Catalog:
        return Catalog(self._db, ENVIRONMENT, None)

    def producers(self, count: int) -> list[Producer]:
        return [Producer(self.store, self.other_catalog()) for _ in range(count)]

    async def create(self, *, qps: float = 50.0, bounds: Bounds | None = None, **settings: Any) -> Family:
        fields = {k: settings.pop(k) for k in ("priorities", "group_qps", "kind") if k in settings}
        topic = Topic(self.family, qps, options=TopicOptions(**{"idle_s": IDLE_S, **settings}), **fields)
        return await self.families.create(Family(topic, bounds or Bounds()))

    async def live(self) -> int:
        return (await self.families.get(self.family)).live

    async def unfinished(self, name: str) -> int:
        [topic] = [await self.catalog.get(name)]
        return sum(lag.unfinished for lag in await self.admin.lag([topic]))

    async def finish(self, name: str) -> dict[str, int]:
        """Save a checkpoint behind all messages of a topic, as its host does; return the tails of its queues."""
        queues = (await self.catalog.get(name)).all_queues()
        tails = {q: b.tail for q, b in zip(queues, served(await self.store.log.bounds(queues)), strict=True)}
        await self.checkpoints.save([Checkpoint(queue, 1, tail) for queue, tail in tails.items()])
        return tails

    async def sleep(self, *names: str, now_ms: int = 0) -> set[str]:
        topics = [await self.catalog.get(name) for name in names]
        return await put_to_sleep(self.store, self.catalog, self.checkpoints, topics, now_ms)

    async def _next_epoch(self) -> int:
        return await self._db.next_generation(ENVIRONMENT)


class Interrupted:
    """Runs something before one of the calls that are made through it and through what it gives out."""

    def __init__(self, whole: Any, calls: list[str], at: int, act: Callable[[], Awaitable[object]]) -> None:
        self._whole, self._calls, self._at, self._act = whole, calls, at, act

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._whole, name)
        if name in ("log", "lanes", "sorted", "families"):
            return Interrupted(found, self._calls, self._at, self._act)
        if not asyncio.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            self._calls.append(name)
            if len(self._calls) == self._at:
                await self._act()
            return await found(*args, **kwargs)

        return call
