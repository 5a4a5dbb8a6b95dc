"""A simulated host: the real one, in a process of its own, with its own clock, network and session."""

from __future__ import annotations

import asyncio
import contextlib
import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import sqlalchemy as sa

from emq.allocation.member import ClusterMembership
from emq.allocation.membership import Seat
from emq.allocation.tree.protocol import Tree
from emq.database import tables
from emq.database.environment_time import EnvironmentTime
from emq.host.handlers import Handlers
from emq.host.host import Host
from emq.host.options import HostOptions
from emq.host.surroundings import Services, Storage
from emq.offsets.checkpoints import Checkpoint, CheckpointStore, Fenced
from emq.runtime import errors
from emq.runtime.clock import SystemClock
from emq.runtime.timekeeping import Asked, Timekeeper
from emq.storage.message import Message
from emq.storage.store import Store
from emq.trail import events
from emq.trail.sink import NullTrail
from support.doubles import InlineDatabase
from support.ensemble import MemoryEnsemble
from support.simulation import lockstep
from support.simulation.breaking import BreakingTree, Breaks
from support.simulation.evidence import Evidence
from support.simulation.families import NotedCatalog
from support.simulation.network import RemoteDatabase, RemoteStore, Wakes
from support.simulation.plans import TopicPlan
from support.simulation.process import Process, SimulatedLoop
from support.simulation.receivers import ASKING, JudgedReceiver
from support.simulation.work import Work
from support.virtual import LoopClock

ENVIRONMENT = "online"
TABLES = tables.metadata.sorted_tables

Rows = dict[sa.Table, list[dict[str, Any]]]

EPOCH_S = 1_700_000_000
"""Begin of all simulations, in seconds since the epoch."""


class HostClock(LoopClock):
    """The loop's time as seconds since the epoch, ahead by `ahead_s`."""

    def __init__(self, ahead_s: float = 0.0) -> None:
        super().__init__(EPOCH_S + 0.25 + ahead_s)


class _Engine:
    """An engine whose one connection stays open: to take it from a pool and put it back each time takes its time."""

    def __init__(self, real: sa.Engine) -> None:
        self._real = real
        self._connection: sa.Connection | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def connect(self) -> contextlib.AbstractContextManager[sa.Connection]:
        if self._connection is None:
            self._connection = self._real.connect()
        return contextlib.nullcontext(self._connection)

    def dispose(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._real.dispose()


class ReferenceDatabase(InlineDatabase):
    """The one database of all, whose clock may jump.

    Attributes:
        ahead_s: how far its clock is ahead of the true time.
    """

    ahead_s = 0.0

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._engine: Any = _Engine(self._engine)

    async def rows(self) -> Rows:
        """Return all rows that the database holds."""
        return await self.run(lambda c: {t: [dict(r) for r in c.execute(t.select()).mappings()] for t in TABLES})

    async def come_back(self, rows: Rows) -> None:
        """Hold these rows, and no others."""

        def replace(connection: sa.Connection) -> None:
            for table in TABLES:
                connection.execute(table.delete())
                if found := rows.get(table):
                    connection.execute(table.insert(), found)

        await self.run(replace)

    def clock_us(self, connection: object) -> int:
        return int((EPOCH_S + 0.25 + self.ahead_s + asyncio.get_running_loop().time()) * 1e6)


class _Trail(NullTrail):
    """Tells the evidence which groups hosts acquire and release."""

    enabled = True

    def __init__(self, host: str, evidence: Evidence) -> None:
        self._host = host
        self._evidence = evidence

    def record(self, event: events.Record) -> None:
        if isinstance(event, events.Owned):
            self._evidence.acquired(self._host, f"{event.topic}/{event.group}", event.epoch)
        elif isinstance(event, events.Released):
            self._evidence.released(self._host, f"{event.topic}/{event.group}", event.epoch)


class _Checkpoints(CheckpointStore):
    """Tells the evidence which checkpoints are saved, and found behind a fence."""

    def __init__(self, db: RemoteDatabase, host: str, evidence: Evidence) -> None:
        super().__init__(db, ENVIRONMENT)
        self._link = db
        self._host = host
        self._evidence = evidence

    async def fence(self, epochs: Mapping[str, int]) -> Fenced:
        if epochs:
            self._link.observer = lambda found: self._evidence.checkpoints_loaded(self._host, found, [*epochs])
        return await super().fence(epochs)

    async def save(self, batch: Sequence[Checkpoint]) -> list[str]:
        if batch:
            self._link.observer = lambda refused: self._evidence.checkpoints_saved(self._host, batch, refused)
        return await super().save(batch)

    async def rewind(self, batch: Sequence[Checkpoint]) -> list[str]:
        if batch:
            self._link.observer = lambda refused: self._evidence.checkpoints_rewound(self._host, batch)
        return await super().rewind(batch)


class Member:
    """Attributes:
    name: of the host.
    life: name and which of its lives; what the evidence calls it.
    ahead_s: how far its machine's wall clock is ahead of the true time.
    loops: of the host, each a task that goes on until it stops.
    leaving: it was told to stop.
    """

    def __init__(
        self,
        name: str,
        life: str,
        store: Store,
        db: InlineDatabase,
        ensemble: MemoryEnsemble,
        evidence: Evidence,
        *,
        ahead_s: float,
        session_s: float,
        weight: float = 1.0,
        plans: Sequence[TopicPlan] = (),
    ) -> None:
        self.name = name
        self.life = life
        self.process = Process(life)
        self.breaks = self.process.breaks = Breaks(life)
        self.tree = ensemble.tree(session_s)
        self.store = RemoteStore(store, lambda call, args, result: evidence.applied(life, call, args, result))
        self.database = RemoteDatabase(db)
        self.store.network.breaks = self.database.network.breaks = self.breaks
        self.ahead_s = ahead_s
        loop = asyncio.get_running_loop()
        machine = 1 + zlib.crc32(name.encode())
        self.clock = SystemClock(self._wall_ns, lambda: int((machine % 10_000 + loop.time()) * 1e9))
        self._time = EnvironmentTime(self.database, ENVIRONMENT, machine=machine)
        self.timekeeper = Timekeeper(self.clock, self._ask, wall_ns=self._wall_ns)
        evidence.occurrences.clocks[life] = lambda: self.clock.now_us()
        self.membership = ClusterMembership(
            Seat(
                cast(Tree, BreakingTree(self.tree, self.breaks)), ENVIRONMENT, name, self._next_generation, self.clock
            ),
            weight=weight,
        )
        self.running: set[int] = set()
        self.leaving = False
        self.handlers = Handlers()
        self.handlers.bind("*", self._handle)
        self._receivers: list[JudgedReceiver] = []
        for plan in plans:
            self._bind(plan, evidence)
        self.host = Host(
            Storage(
                self.store,
                NotedCatalog(self.database, ENVIRONMENT, evidence),
                _Checkpoints(self.database, life, evidence),
            ),
            self.membership,
            self.handlers,
            Services(self.clock, self.timekeeper, trail=_Trail(life, evidence)),
            HostOptions(catalog_poll_s=0.8, checkpoint_s=1.0, drain_s=5.0),
        )
        self.breaks.guard(self.host.guard)
        self.loops: list[asyncio.Task[None]] = []
        start = self.host.guard.start
        setattr(self.host.guard, "start", lambda loops: self._noted(start(loops)))  # noqa: B010
        self._evidence = evidence
        self.task: asyncio.Task[None] | None = None

    def _bind(self, plan: TopicPlan, evidence: Evidence) -> None:
        """Bind the topics that have handlers of their own."""
        if plan.batch > 1:
            self.handlers.bind(plan.name, self._handle_batch, batch_size=plan.batch)
        elif plan.by == "thread":
            self.handlers.bind(plan.name, lambda m: self._handle_in_thread(m, plan.handler_timeout_s))
        elif plan.by == "receiver":
            self._receivers.append(JudgedReceiver(self, evidence))
            # As `App` does.
            self._receivers[-1].on_wanted.append(lambda receiver: self.host.work.dispatcher.wanted(receiver))
            self.handlers.bind_receiver(plan.name, self._receivers[-1])

    def _noted(self, loops: list[asyncio.Task[None]]) -> list[asyncio.Task[None]]:
        self.loops = self.loops + loops
        return loops

    def start(self) -> asyncio.Task[None]:
        self.task = self.process.start(self._run())
        return self.task

    async def _run(self) -> None:
        await self.timekeeper.begin()
        asking = [
            asyncio.create_task(receiver.ask(random.Random(f"{self.life} {number}")))
            for receiver in self._receivers
            for number in range(ASKING)
        ]
        try:
            await self.host.run()
        finally:
            for task in asking:
                task.cancel()
            if self.host.guard.broken:
                raise AssertionError(f"loops broke: {dict(self.host.guard.broken)}")

    def _wall_ns(self) -> int:
        return int((EPOCH_S + 0.25 + self.ahead_s + asyncio.get_running_loop().time()) * 1e9)

    async def _ask(self, passed_us: Callable[[], int], note: bool, anchor_us: int | None = None, /) -> Asked:
        """Ask over the network, whose delays count in the round trip."""
        sent_us = passed_us()
        asked = await self._time.ask(passed_us, note, anchor_us)
        return Asked(asked.time_us, sent_us, passed_us())

    def kill(self) -> None:
        """Kill the host, like SIGKILL: none of it runs any more, nothing is saved, its session runs out."""
        self.process.stop()
        self.tree.freeze()

    def pause(self) -> None:
        self.process.stop()
        self.tree.freeze()

    def wake(self, asleep_s: float) -> None:
        """Its machine was suspended for so long, of which its timers know nothing."""
        self.process.wake(asleep_s)
        self.tree.thaw()

    def go_on(self, tree_first: bool) -> None:
        if tree_first:
            self.tree.thaw()
        self.process.go_on()
        self.tree.thaw()

    def leave(self) -> None:
        """Stop in order."""
        self.leaving = True
        self.host.stop()

    def heal(self) -> None:
        self.breaks.share = 0.0
        self.store.wakes = Wakes.WELL
        self.store.network.heal()
        self.database.network.heal()

    async def _next_generation(self, least: int) -> int:
        epoch = await self.database.next_generation(ENVIRONMENT, least)
        self._evidence.epochs.given(self.life, epoch)
        return epoch

    async def _handle(self, m: Message) -> None:
        number, succeeded = self.started(m), False
        work = self._evidence.starts[number].work
        _compute(number)
        try:
            if work.takes_ms:
                await asyncio.sleep(work.takes_ms / 1000)
            while (left_s := self._evidence.hangs.get(m.topic, 0.0) - self._evidence.now) > 0:
                await asyncio.sleep(left_s)
            if m.attempt <= work.fails:
                raise _failure(m, work)
            succeeded = True
        finally:
            self.ended(number, succeeded)

    def _handle_in_thread(self, m: Message, timeout_s: float) -> None:
        """A plain function; it goes on after its time is over, and nobody asks any more how it ends."""
        number = self.started(m)
        work = self._evidence.starts[number].work
        takes_s = work.takes_ms / 1000
        if takes_s > timeout_s:
            lockstep.sleep(timeout_s)
            self.ended(number, False)
            lockstep.sleep(takes_s - timeout_s)
            return
        if takes_s:
            lockstep.sleep(takes_s)
        self.ended(number, m.attempt > work.fails)
        if m.attempt <= work.fails:
            raise _failure(m, work)

    async def _handle_batch(self, batch: list[Message]) -> None:
        """Some of it fails, told by message id: of two copies of a message, as after a store crash, one has to do."""
        works = [Work.parse(m.payload) for m in batch]
        numbers = [self.started(m) for m in batch]
        _compute(numbers[-1])
        done_ids = {m.id for m, work in zip(batch, works, strict=True) if m.attempt > work.fails}
        failed = {m.id for m in batch} - done_ids
        done = False
        try:
            if takes_ms := max(work.takes_ms for work in works):
                await asyncio.sleep(takes_ms / 1000)
            done = True
        finally:
            for m, number in zip(batch, numbers, strict=True):
                self.ended(number, done and m.id not in failed)
        if failed:
            raise errors.PartialFailure(
                {m.id: _failure(m, work) for m, work in zip(batch, works, strict=True) if m.id in failed}
            )

    def started(self, m: Message) -> int:
        group = self.host.ownership.groups.get(f"{m.topic}/{m.group}")
        epoch = -1 if group is None or group.lost else group.epoch
        queue = group.queues[m.priority].name if group is not None and m.offset >= 0 else ""
        number = self._evidence.started(self.life, epoch, m, queue)
        self.running.add(number)
        return number

    def ended(self, number: int, succeeded: bool) -> None:
        self.running.discard(number)
        self._evidence.ended(number, succeeded, self.clock.now_us())


def _compute(number: int) -> None:
    """Let time pass within a turn of the event loop, as where a handler computes: up to 0.6 ms, now and then 20 ms."""
    if isinstance(loop := asyncio.get_running_loop(), SimulatedLoop):
        loop._virtual.leap(loop.time() + (0.02 if number % 101 == 0 else number % 7 * 1e-4))


def _failure(m: Message, work: Work) -> errors.Retry:
    return errors.Retry(f"attempt {m.attempt} of {work.fails} that fail")
