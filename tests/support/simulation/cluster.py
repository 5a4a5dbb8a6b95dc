"""The simulated cluster: hosts, the ensemble, one store, one database, and those who publish."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, NamedTuple

from emq.allocation import records
from emq.database import environment_time
from emq.database.database import ANSWER_S
from emq.observe.admin import Admin
from emq.offsets.checkpoints import CheckpointStore
from emq.offsets.lag import unfinished
from emq.producer import Producer
from emq.runtime import errors
from emq.topics.catalog import Catalog
from emq.topics.shares import Division
from support.ensemble import MemoryEnsemble
from support.simulation import families, layouts, memory
from support.simulation.catalog_orders import CatalogOrders
from support.simulation.evidence import Evidence
from support.simulation.extra import RECURRING
from support.simulation.keepers import Keep
from support.simulation.member import ENVIRONMENT, HostClock, Member, ReferenceDatabase
from support.simulation.network import RemoteDatabase, RemoteStore
from support.simulation.plans import TopicPlan
from support.simulation.publisher import Publisher
from support.simulation.rules import Rules
from support.simulation.schedule import END_S, REBORN, SESSION_S, Schedule
from support.simulation.timetable import Timetable
from support.simulation.work import Work

QUIET_S = 120.0
"""Everything is done, or something was started, within so long after the last fault or the last start."""

LONGEST_S = 300.0
"""So long after the last fault everything must be done: a topic that shrank to a start a second has a long backlog."""

WATCH_S = 0.4

STARTED_S = 1.0
"""Seconds after the beginning by which every host is at work."""

UNINFORMING = (
    *("database_delay", "database_loss", "database_down", "database_down_for_all"),
    *("database_silent", "database_silent_for_all", "pause", "reference_jump"),
    *("database_shorter", "database_empty"),
)
"""Events that keep a host from reading the catalog for longer than changes wait, or make that shorter."""


class Snapshot(NamedTuple):
    """The store at some time, with what it held of merge keys, the names of its messages by queue and offset, the
    sealed queues, lanes and slots (None for an empty store), and the layouts that its queues take."""

    kept: object
    folding: Any
    offsets: Mapping[str, dict[int, str]] = MappingProxyType({})
    sealed: Set[str] | None = None
    raised: Mapping[str, int] = MappingProxyType({})


class Cluster:
    """Attributes:
    alive: hosts that run or are paused, in the order of their start.
    gone: hosts that were killed.
    keeper: of the data of the one store.
    timetable: of the topic with schedules, if there is one.
    topics: what operators do to them.
    losing: held while the database loses something.
    weights: what operators have ordered, by name of a host; 0 for one that is to have nothing.
    calm: see `Rules`, but for the first span.
    """

    def __init__(self, schedule: Schedule, db: ReferenceDatabase, evidence: Evidence, keep: Keep) -> None:
        self.schedule = schedule
        self.evidence = evidence
        self.db = db
        self.clock = HostClock()
        self.keeper = keep.keeper(self.clock)
        evidence.head_of = self.keeper.head_of
        self.ensemble = MemoryEnsemble(self.clock)
        self.operator = self.ensemble.tree(SESSION_S)
        self.alive: list[Member] = []
        self.gone: list[Member] = []
        self.rng = random.Random(f"{schedule.seed} cluster")
        self.catalog = Catalog(db, ENVIRONMENT, None)
        self.checkpoints = CheckpointStore(db, ENVIRONMENT)
        self.store = RemoteStore(
            self.keeper.open(), lambda call, args, result: evidence.applied("publisher", call, args, result)
        )
        # What fails half-way for an operator is repeated by hand, which is no matter of this.
        operators = RemoteStore(
            self.keeper.open(), lambda call, args, result: evidence.applied("publisher", call, args, result)
        )
        self.admin = Admin(self.catalog, operators, self.checkpoints, self._next_epoch)
        self.divisions: dict[str, list[Division]] = {}
        self.publishers: dict[str, Publisher] = {}
        self.weights: dict[str, float] = {}
        self.calm: list[tuple[float, float]] = []
        self.timetable: Timetable | None = None
        self.topics = CatalogOrders(self)
        self.losing = asyncio.Lock()
        self._clocks = itertools.cycle(schedule.offsets_s)
        evidence.occurrences.clocks["publisher"] = self.clock.now_us
        self._lives: Counter[str] = Counter()
        self._names = itertools.count(1)
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Create the topics, and start the first hosts and the publishers."""
        await self.operator.open(lambda state: None)
        await families.create(self)
        for plan in self.schedule.topics:
            if plan.sleeps:
                self.divisions[plan.name] = [plan.topic(plan.qps).divided(())]
            elif not plan.created_s:
                await self.admin.create([plan.topic(plan.qps)])
        if late := [plan for plan in self.schedule.topics if plan.created_s]:
            self.spawn(self._create_late(late))
        await self.look_at_quotas()
        self.spawn(self._watch_quotas())
        self.spawn(memory.watch(self))
        self.spawn(layouts.watch(self))
        for _ in range(self.schedule.hosts):
            self.join()
        producer = Producer(self.store, Catalog(RemoteDatabase(self.db), ENVIRONMENT, None), clock=self.clock)
        for plan in self.schedule.topics:
            publisher = self.publishers[plan.name] = Publisher(producer, plan, self.evidence, self.schedule.seed)
            self.spawn(publisher.run(END_S + 2.0))
            if plan.name == RECURRING:
                self.timetable = Timetable(self, producer, plan)
                self.spawn(self.timetable.run(END_S))

    def join(self, name: str = "") -> Member:
        """Start a host; if a host of this name existed before, the new one is another life of it."""
        name = name or f"h{next(self._names)}"
        self._lives[name] += 1
        life = name if self._lives[name] == 1 else f"{name}.{self._lives[name]}"
        member = Member(
            name,
            life,
            self.keeper.open(),
            self.db,
            self.ensemble,
            self.evidence,
            ahead_s=next(self._clocks),
            plans=self.schedule.topics,
            session_s=SESSION_S,
        )
        self.alive.append(member)
        member.start().add_done_callback(lambda task: self._ended(member, task))
        return member

    def kill(self, member: Member) -> None:
        member.kill()
        if member in self.alive:
            self.alive.remove(member)
            self.gone.append(member)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work that belongs to no host. If it breaks, the trial has failed: a judge that has died finds nothing."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._work_ended)
        self._tasks.append(task)

    def _work_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (exc := task.exception()) is not None:
            self.evidence.violated("run", "", f"{task.get_coro()!r} has ended with {exc!r}")

    def snapshot(self) -> Snapshot:
        """What the store has now, and what is known of it."""
        offsets = {queue: dict(names) for queue, names in self.evidence.offsets.items()}
        sealed, raised = frozenset(self.evidence.seals.there), dict(self.evidence.layouts.raised)
        return Snapshot(self.keeper.snapshot(), self.evidence.folding.snapshot(), offsets, sealed, raised)

    def lose(self, snapshot: Snapshot | None) -> None:
        """The store comes back as it was at a snapshot, or empty."""
        snapshot = snapshot or Snapshot(None, None)
        self.keeper.restore(snapshot.kept)
        self.evidence.folding.lost(snapshot.folding)
        queues, lanes, slots = self.keeper.contents()
        members = [member for name, found in slots.items() if not self.evidence.folding.keeps(name) for member in found]
        self.evidence.store_lost(queues, lanes, members, snapshot.offsets, snapshot.sealed, snapshot.raised)

    async def order(self, member: Member, order: records.Order) -> None:
        """Give an operator's order for a host; repeat it until it has certainly arrived."""
        self.weights[member.name] = 0.0 if order.drain else order.weight or 1.0
        path, data = records.Paths(ENVIRONMENT).order(member.name), records.encode(order)
        while True:
            try:
                if await self.operator.read(path) is None:
                    await self.operator.create(path, data)
                else:
                    await self.operator.write(path, data, -1)
                return
            except errors.EMQError:  # the servers are away
                await asyncio.sleep(WATCH_S)

    def leader(self) -> Member | None:
        """Return the host that leads, if it is alive."""
        children = self.ensemble.nodes.children(records.Paths(ENVIRONMENT).leader)
        node = self.ensemble.nodes.read(f"{records.Paths(ENVIRONMENT).leader}/{children[0]}") if children else None
        return next((m for m in self.alive if node is not None and m.name == node.data.decode()), None)

    async def time_us(self) -> int:
        """Return the environment's time, in microseconds since the epoch."""
        return await self.db.run(lambda connection: environment_time.now_us(connection, self.db, ENVIRONMENT))

    def rules(self) -> Rules:
        first = min((event.at for event in self.schedule.events), default=END_S)
        return Rules(
            self.schedule.clean,
            self.divisions,
            not any(e.what in UNINFORMING for e in self.schedule.events),
            {plan.name: plan for plan in self.schedule.topics},
            [(STARTED_S, first), *self.calm],
        )

    # --------------------------------------------------------------------------------------------------------- the end

    def heal(self) -> None:
        """End every fault; at least one host is there to stay."""
        self.ensemble.quorum = True
        self.ensemble.delay, self.ensemble.loses_answer = (lambda: 0.0), (lambda operation, path: False)
        self.store.network.heal()
        for member in self.alive:
            member.heal()
            self.ensemble.heal(member.tree)
            member.go_on(tree_first=True)
        if all(member.leaving for member in self.alive):
            self.join()

    async def quiet(self) -> bool:
        """As `done`, after faults: a host that asked a silent server hears of it only some time later."""
        await asyncio.sleep(ANSWER_S)
        return await self.done()

    async def done(self) -> bool:
        """Wait until all that was published is done; False if it takes too long, or nothing goes on any more."""
        deadline, last, starts = self.evidence.now + LONGEST_S, self.evidence.now, len(self.evidence.starts)
        while self.evidence.now < min(deadline, last + QUIET_S):
            await asyncio.sleep(1.0)
            if len(self.evidence.starts) > starts:
                last, starts = self.evidence.now, len(self.evidence.starts)
            if not any(member.running for member in self.alive) and not await self.left():
                return True
        return False

    async def left(self) -> list[str]:
        """Return the queues, lanes and slots that have work left."""
        topics = await self.catalog.list()
        if self.evidence.lost_at:  # a store that lost a seal may hold finished messages of a topic that sleeps
            topics = [topic for topic in topics if not topic.asleep_s]
        groups = [topic.group(i) for topic in topics for i in range(topic.groups)]
        queues = [queue for topic in topics for queue in topic.all_queues()]
        store = self.keeper.store
        busy = [q for q, n in zip(queues, await unfinished(store.log, self.checkpoints, queues), strict=True) if n]
        lanes = zip(groups, await store.lanes.inspect(groups), strict=True)
        slots = [topic.slot(i) for topic in topics if topic.is_sorted for i in range(topic.slots)]
        states = zip(slots, await store.sorted.inspect(slots, 0), strict=True)
        return [
            *busy,
            *(f"lane {group}: {state}" for group, state in lanes if state.waiting or state.prepared),
            *(f"slot {slot.name}: {state}" for slot, state in states if state.waiting or state.prepared),
        ]

    async def stop(self) -> None:
        """Stop the hosts cleanly."""
        for member in list(self.alive):
            member.leave()
        tasks = [member.task for member in self.alive if member.task is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=60.0)
            if late:
                self.evidence.violated("run", "", f"{len(late)} hosts did not stop within a minute")

    async def dead(self) -> list[str]:
        """Return the names of the works in the dead letters."""
        found = []
        store = self.keeper.store
        for topic in await self.catalog.list():
            for i in range(topic.groups):
                letters = await store.lanes.dead(topic.group(i), limit=10_000)
                found += [self.evidence.name_of(letter.body) for letter in letters]
                if topic.options.merge == "key":
                    for d in await store.sorted.dead(topic.slot(i), limit=10_000):
                        self.evidence.folding.buried[topic.slot(i).name, d.member] = d.body
                elif topic.is_sorted:
                    found += [Work.parse(d.member).name for d in await store.sorted.dead(topic.slot(i), limit=10_000)]
        return found

    async def bury(self) -> None:
        """Take down the remains of every host that did not end by itself; none of their events count any more."""
        for task in self._tasks:
            task.cancel()
        members = [m for m in self.alive + self.gone if m.task is not None and not m.task.done()]
        for member in members:
            assert member.task is not None
            member.task.cancel()
            member.process.go_on()
            member.tree.thaw()
            member.store.network.down = member.database.network.down = True
        if members:
            await asyncio.wait([m.task for m in members if m.task is not None], timeout=60.0)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---------------------------------------------------------------------------------------------------------- details

    def _ended(self, member: Member, task: asyncio.Task[None]) -> None:
        if member in self.alive:
            self.alive.remove(member)
        self.evidence.note("", f"{member.life} has ended")
        if not task.cancelled() and (failure := task.exception()) is not None:
            self.evidence.failed(member.life, failure)

    async def _create_late(self, plans: Sequence[TopicPlan]) -> None:
        """Create topics, each behind its budget, at the time of the first of them."""
        await asyncio.sleep(plans[0].created_s)
        for plan in plans:
            await self.topics.create_late(plan)

    async def _watch_quotas(self) -> None:
        version = 0
        while True:
            await asyncio.sleep(WATCH_S)
            if (now := await self.catalog.version()) != version:
                version = now
                await self.look_at_quotas()

    async def look_at_quotas(self) -> None:
        for topic in await self.catalog.list():
            if topic.options.idle_s is not None:  # whether it sleeps or not, its groups share the same qps
                continue
            known = self.divisions.setdefault(topic.name, [*topic.timeline])
            if topic.name != REBORN:  # of which `create_again` notes how it begins
                # Whatever was in force at any time stays in the record for longer than it takes to look again.
                known[:] = _followed(known, topic.timeline)

    async def _next_epoch(self) -> int:
        """As `App` takes one for an operator."""
        epoch = await self.db.next_generation(ENVIRONMENT, await self.time_us())
        self.evidence.epochs.given("an operator", epoch)
        return epoch


def _followed(known: list[Division], timeline: Sequence[Division]) -> list[Division]:
    """What was known of a topic's divisions, with those in place that are in force and to come now.

    What was to come may have been replaced before it began.
    """
    first = next((d.since_s for d in timeline if d.since_s), None)
    if first is not None:
        return [d for d in known if d.since_s < first] + [d for d in timeline if d.since_s >= first]
    last = max((i for i, d in enumerate(known) if d.same_shares(timeline[0])), default=None)
    return known if last is None else known[: last + 1]
