"""Hosts built from their parts on one memory store, and the deliveries to their handlers."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, NamedTuple

from emq.allocation.membership import Membership
from emq.groups.records import Records
from emq.host.handlers import Handlers
from emq.host.host import Host
from emq.host.options import HostOptions
from emq.host.surroundings import Services, Storage
from emq.observe.admin import Admin
from emq.offsets.checkpoints import CheckpointStore
from emq.producer import Producer
from emq.runtime.clock import Clock
from emq.runtime.timekeeping import Timekeeper
from emq.storage.message import Message
from emq.topics.catalog import Catalog
from emq.topics.model import Topic, TopicOptions
from emq.trail.sink import NullTrail, TrailSink
from emq_stores.memory import MemoryStore, World
from support.doubles import FaultyStore, InlineDatabase
from support.local_cluster import LocalCluster
from support.virtual import LoopClock

ENVIRONMENT = "online"


class Unheard(asyncio.Event):
    """Never set: what changes the catalog is another process, of whose changes hosts hear when they look."""

    def set(self) -> None:
        """Do nothing."""


class Delivery(NamedTuple):
    """A start as the handler saw it; times in microseconds since the epoch."""

    id: str
    payload: bytes
    key: str | None
    topic: str
    group: int
    priority: int
    attempt: int
    ready_us: int
    started_us: int
    error: str | None
    host: str


class Seen:
    """Records every delivery; the handler raises or awaits whatever `then` does."""

    def __init__(self, then: Callable[[Message], Awaitable[object]] | None = None) -> None:
        self.deliveries: list[Delivery] = []
        self.running = 0
        self.most_running = 0
        self.then = then

    def on(self, host: str) -> Callable[[Message], Awaitable[None]]:
        async def handler(m: Message) -> None:
            await self.take(m, host)

        return handler

    async def take(self, m: Message, host: str = "") -> None:
        self.deliveries.append(
            Delivery(
                m.id,
                m.payload,
                m.key,
                m.topic,
                m.group,
                m.priority,
                m.attempt,
                m.ready_us,
                m.started_us,
                m.error,
                host,
            )
        )
        if self.then is None:
            return
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await self.then(m)
        finally:
            self.running -= 1

    def __len__(self) -> int:
        return len(self.deliveries)

    @property
    def payloads(self) -> list[bytes]:
        return [d.payload for d in self.deliveries]

    @property
    def ids(self) -> list[str]:
        return [d.id for d in self.deliveries]

    def of(self, topic: str) -> list[Delivery]:
        return [d for d in self.deliveries if d.topic == topic]


def starts_per_second(deliveries: Iterable[Delivery]) -> Counter[tuple[str, int]]:
    """Count starts by (topic, aligned second)."""
    return Counter((d.topic, d.started_us // 1_000_000) for d in deliveries)


def inversions(deliveries: Iterable[Delivery]) -> list[tuple[Delivery, Delivery]]:
    """Return pairs (started, passed over): a lower priority started while a higher one of its group was ready."""
    found = []
    by_group: dict[tuple[str, int], list[Delivery]] = {}
    for d in deliveries:
        by_group.setdefault((d.topic, d.group), []).append(d)
    for of_group in by_group.values():
        for place, low in enumerate(of_group):
            found += [
                (low, high)
                for high in of_group[place + 1 :]
                if high.priority < low.priority and high.ready_us < low.started_us
            ]
    return found


class Rig:
    """One catalog, one memory world, one cluster; any number of hosts.

    Attributes:
        store: the store of the producer and the administration.
        cluster: assigns groups to the hosts of `host`.
    """

    def __init__(self, db: InlineDatabase, clock: Clock, max_queue_qps: float | None = None) -> None:
        self.clock = clock
        self.world = World(clock)
        self.store = FaultyStore(MemoryStore(self.world))
        self.db = db
        self.catalog = Catalog(db, ENVIRONMENT, max_queue_qps, clock)
        self.catalog.written = Unheard()
        self.checkpoints = CheckpointStore(db, ENVIRONMENT)
        self.admin = Admin(self.catalog, self.store, self.checkpoints, self.next_epoch)
        self.producer = Producer(self.store, self.catalog, clock=clock)
        self.cluster = LocalCluster(self.next_epoch)

    async def next_epoch(self) -> int:
        return await self.db.next_generation(ENVIRONMENT)

    async def topic(self, name: str, qps: float = 1_000.0, **settings: Any) -> Topic:
        fields = {k: settings.pop(k) for k in ("group_qps", "priorities", "kind", "slots") if k in settings}
        [topic] = await self.admin.create([Topic(name, qps, options=TopicOptions(**settings), **fields)])
        return topic

    def host(
        self,
        handlers: Handlers | Seen,
        name: str = "host-1",
        *,
        membership: Membership | None = None,
        store: FaultyStore | None = None,
        trail: TrailSink | None = None,
        clock: Clock | None = None,
        timekeeper: Timekeeper | None = None,
        records: Records | None = None,
        **options: Any,
    ) -> Host:
        if isinstance(handlers, Seen):
            handlers = bound({"*": handlers.on(name)})
        return Host(
            Storage(store or FaultyStore(MemoryStore(self.world)), self.catalog, self.checkpoints),
            membership or self.cluster.member(name),
            handlers,
            Services(clock or self.clock, timekeeper, trail=trail or NullTrail(), records=records or Records()),
            HostOptions(**{"catalog_poll_s": 0.05, "checkpoint_s": 0.25, "drain_s": 5.0, **options}),
        )

    @contextlib.asynccontextmanager
    async def consuming(self, handlers: Handlers | Seen, name: str = "host-1", **options: Any) -> AsyncIterator[Host]:
        """Yield a host that runs inside the block, and is stopped cleanly at its end."""
        host = self.host(handlers, name, **options)
        async with running(host):
            yield host

    async def checkpointed(self, queue: str) -> int:
        """Return the stored watermark of a queue; 0 if there is none."""
        saved = await self.checkpoints.load([queue])
        return saved[queue].watermark if queue in saved else 0

    async def slots(self, topic: str = "t") -> tuple[int, int, int]:
        """Return how many members of all slots of a topic are waiting, prepared and dead."""
        found = await self.catalog.get(topic)
        slots = [found.slot(i) for i in range(found.slots)]
        states = await self.store.sorted.inspect(slots, int(self.clock.now() * 1000))
        return sum(s.waiting for s in states), sum(s.prepared for s in states), sum(s.dead for s in states)

    async def lag(self, topic: str) -> int:
        return sum(lag.unfinished for lag in await self.admin.lag([await self.catalog.get(topic)]))


@contextlib.asynccontextmanager
async def rig(clock: Clock | None = None) -> AsyncIterator[Rig]:
    db = await InlineDatabase.open("sqlite://")
    try:
        yield Rig(db, clock or LoopClock())
    finally:
        await db.close()


@contextlib.asynccontextmanager
async def running(host: Host) -> AsyncIterator[asyncio.Task[None]]:
    """Yield the host's run as a task; stop it cleanly at the end; its failure fails the test."""
    task = asyncio.create_task(host.run())
    ready = asyncio.create_task(host.running.wait())
    try:
        await asyncio.wait([task, ready], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
        yield task
    finally:
        ready.cancel()
        host.stop()
        if not task.cancelled():
            await asyncio.wait([task])
    if not task.cancelled():
        await task
    assert not host.guard.broken, f"loops broke: {dict(host.guard.broken)}"


def bound(handlers: dict[str, Callable[[Any], Any]], *, batch_size: int = 1, threads: int = 4) -> Handlers:
    made = Handlers(threads)
    for pattern, function in handlers.items():
        made.bind(pattern, function, batch_size=batch_size)
    return made
