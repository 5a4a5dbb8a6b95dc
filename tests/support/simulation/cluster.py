"""The simulated cluster: hosts, the ensemble, one store, one database, and those who publish."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import random
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple

import msgspec

from emq import errors
from emq.allocation import records
from emq.allocation.tree.memory.ensemble import MemoryEnsemble
from emq.database.database import ANSWER_S
from emq.inspect.admin import Admin
from emq.offsets.checkpoints import CheckpointStore
from emq.offsets.lag import unfinished
from emq.producer import Producer
from emq.topics.catalog import Catalog
from emq.topics.model import State
from emq.topics.shares import Division, Share
from support.simulation import memory
from support.simulation.evidence import Evidence
from support.simulation.extra import RECURRING
from support.simulation.keepers import Keep
from support.simulation.member import ENVIRONMENT, EPOCH_S, HostClock, Member, ReferenceDatabase
from support.simulation.network import RemoteDatabase, RemoteStore
from support.simulation.plans import TopicPlan
from support.simulation.publisher import Publisher
from support.simulation.rules import Rules
from support.simulation.schedule import END_S, REBORN, SESSION_S, Schedule
from support.simulation.timetable import Timetable
from support.simulation.varied import VARIED
from support.simulation.work import Work

QUIET_S = 120.0
"""So long after the last fault everything must be done."""

WATCH_S = 0.4

LEARN_S = 2
"""A change counts from the second that begins so long after it at the latest, as is promised."""

STARTED_S = 1.0
"""So long after the beginning every host is at work."""

UNINFORMING = (
    *("database_delay", "database_loss", "database_down", "database_down_for_all"),
    *("database_silent", "database_silent_for_all", "pause", "reference_jump"),
)
"""Events that keep a host from reading the catalog for longer than changes wait, or make that shorter."""


class Snapshot(NamedTuple):
    """The store at some time, with what it held of merge keys."""

    kept: object
    folding: Any


class Cluster:
    """Attributes:
    alive: hosts that run or are paused, in the order of their start.
    gone: hosts that were killed.
    keeper: of the data of the one store.
    timetable: of the topic with schedules, if there is one.
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
        self.quotas: dict[str, list[tuple[float, Share]]] = {}
        self.divisions: dict[str, list[Division]] = {}
        self.publishers: dict[str, Publisher] = {}
        self.weights: dict[str, float] = {}
        self.calm: list[tuple[float, float]] = []
        self.timetable: Timetable | None = None
        self._sizes: Counter[str] = Counter()
        self._pauses = 0
        self._clocks = itertools.cycle(schedule.offsets_s)
        self._lives: Counter[str] = Counter()
        self._names = itertools.count(1)
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Create the topics, and start the first hosts and those who publish."""
        await self.operator.open(lambda state: None)
        for plan in self.schedule.topics:
            await self.admin.create([plan.topic(plan.qps)])
        await self._look_at_quotas()
        self.spawn(self._watch_quotas())
        self.spawn(memory.watch(self))
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
        """Start a host; one of a name that was there before is another life of it."""
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
        """Run something that belongs to no host."""
        task = asyncio.create_task(work)
        self._tasks.append(task)

    async def pause(self) -> None:
        """Pause the topic that is paused now and then; each pause ends with `go_on`."""
        self._pauses += 1
        if self._pauses == 1:
            await self.admin.set_state(VARIED, State.PAUSED)
            self.evidence.note(VARIED, "paused")
            self.evidence.paused.append((VARIED, self.evidence.now, math.inf))

    async def go_on(self) -> None:
        """End a pause; the topic goes on with the last one."""
        self._pauses -= 1
        if self._pauses == 0:
            _, since, _ = self.evidence.paused[-1]
            self.evidence.paused[-1] = VARIED, since, self.evidence.now
            await self.admin.set_state(VARIED, State.ACTIVE)
            self.evidence.note(VARIED, "goes on")

    async def set_qps(self, name: str, qps: float) -> None:
        """Change a topic's capacity, while hosts are well."""
        before = (await self.catalog.get(name)).qps
        topic = await self.admin.update(name, qps=qps)
        self.evidence.note(name, f"qps is {qps} now, and was {before}")
        latest_s = int(max(member.clock.now() for member in self.alive) + 0.1) + 1 + LEARN_S
        if topic.division.since_s > latest_s:
            text = f"its new quota counts from second {topic.division.since_s} on, {latest_s} at the latest"
            self.evidence.violated("use", f"{name}/0", text)

    async def resize(self, pick: int) -> None:
        """Set the next size of a topic that has sizes, once hosts can hear of it: nobody changes an absent catalog."""
        while self.alive and all(member.database.network.is_away for member in self.alive):
            await asyncio.sleep(WATCH_S)
        plans = [plan for plan in self.schedule.topics if plan.sizes and plan.name not in (REBORN, VARIED)]
        await self._next_size(plans[pick % len(plans)])

    async def resize_keyed(self) -> None:
        """Set the next size of the topic whose keys move."""
        await self._next_size(next(plan for plan in self.schedule.topics if plan.name == VARIED))

    async def _next_size(self, plan: TopicPlan) -> None:
        self._sizes[plan.name] += 1
        qps = plan.sizes[self._sizes[plan.name] % len(plan.sizes)]
        await self.admin.update(plan.name, qps=qps)
        self.evidence.note(plan.name, f"qps is {qps} now")

    async def create_again(self, after_s: float) -> None:
        """Delete a topic with all that it holds, and create it with its next size after a while."""
        plan = next(plan for plan in self.schedule.topics if plan.name == REBORN)
        with contextlib.suppress(errors.UnknownTopic):  # it is deleted already
            await self.admin.delete(plan.name, force=True)
            self.evidence.dropped(plan.name)
            await asyncio.sleep(after_s)
            self._sizes[plan.name] += 1
            qps = plan.sizes[self._sizes[plan.name] % len(plan.sizes)]
            [topic] = await self.admin.create([plan.topic(qps)])
            # Whether it has to wait or not: nobody starts anything in the second in which a group is acquired.
            begun = topic.division
            since_s = begun.since_s or int(EPOCH_S + 0.25 + self.db.ahead_s + self.evidence.now) + 1
            # Hosts do not follow a clock that was set back.
            seconds = [s.started_us // 1_000_000 for s in self.evidence.starts if s.work.topic == plan.name]
            since_s = max(since_s, max(seconds, default=0) + 1)
            known = [d for d in self.divisions[plan.name] if d.since_s < since_s]
            self.divisions[plan.name] = [*known, msgspec.structs.replace(begun, since_s=since_s)]
            self.evidence.note(plan.name, f"created again with qps {qps}, from second {since_s} on")

    def snapshot(self) -> Snapshot:
        """What the store has now, and what is known of it."""
        return Snapshot(self.keeper.snapshot(), self.evidence.folding.snapshot())

    def lose(self, snapshot: Snapshot | None) -> None:
        """The store comes back as it was at a snapshot, or empty."""
        self.keeper.restore(None if snapshot is None else snapshot.kept)
        self.evidence.folding.lost(None if snapshot is None else snapshot.folding)
        queues, lanes, slots = self.keeper.contents()
        members = [member for name, found in slots.items() if not self.evidence.folding.keeps(name) for member in found]
        self.evidence.store_lost(queues, lanes, members)

    async def order(self, member: Member, order: records.Order) -> None:
        """Say what an operator wants of a host, again until it is known to be said."""
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
        """The host that leads, if it is alive."""
        children = self.ensemble.nodes.children(records.Paths(ENVIRONMENT).leader)
        node = self.ensemble.nodes.read(f"{records.Paths(ENVIRONMENT).leader}/{children[0]}") if children else None
        return next((m for m in self.alive if node is not None and m.name == node.data.decode()), None)

    def rules(self) -> Rules:
        first = min((event.at for event in self.schedule.events), default=END_S)
        return Rules(
            self.schedule.clean,
            self.quotas,
            self.divisions,
            not any(e.what in UNINFORMING for e in self.schedule.events),
            {plan.name: plan for plan in self.schedule.topics},
            [(STARTED_S, first), *self.calm],
        )

    # --------------------------------------------------------------------------------------------------------- the end

    def heal(self) -> None:
        """End every fault; at least one host is there."""
        self.ensemble.quorum = True
        self.ensemble.delay, self.ensemble.loses_answer = (lambda: 0.0), (lambda operation, path: False)
        self.store.network.heal()
        for member in self.alive:
            member.heal()
            self.ensemble.heal(member.tree)
            member.go_on(tree_first=True)
        if not self.alive:
            self.join()

    async def quiet(self) -> bool:
        """As `done`, after faults: a host that asked a silent server hears of it only some time later."""
        await asyncio.sleep(ANSWER_S)
        return await self.done()

    async def done(self) -> bool:
        """Wait until all that was published is done; False if it takes too long."""
        deadline = self.evidence.now + QUIET_S
        while self.evidence.now < deadline:
            await asyncio.sleep(1.0)
            if not any(member.running for member in self.alive) and not await self.left():
                return True
        return False

    async def left(self) -> list[str]:
        """Queues, lanes and slots in which something is left to do."""
        topics = await self.catalog.list()
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
            member.host.stop()
        tasks = [member.task for member in self.alive if member.task is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=60.0)
            if late:
                self.evidence.violated("run", "", f"{len(late)} hosts did not stop within a minute")

    async def dead(self) -> list[str]:
        """Names of the works in the dead letters."""
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
        """Take down what is left of every host that did not end by itself; nothing of it counts any more."""
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

    async def _watch_quotas(self) -> None:
        version = 0
        while True:
            await asyncio.sleep(WATCH_S)
            if (now := await self.catalog.version()) != version:
                version = now
                await self._look_at_quotas()

    async def _look_at_quotas(self) -> None:
        for topic in await self.catalog.list():
            known = self.divisions.setdefault(topic.name, [*topic.timeline])
            if topic.name != REBORN:  # of which `create_again` notes how it begins
                # Whatever was in force at any time stays in the record for longer than it takes to look again.
                known[:] = _followed(known, topic.timeline)
            for i in range(topic.groups):
                history, quota = self.quotas.setdefault(topic.group(i), []), topic.division.share(i)
                if not history or history[-1][1] != quota:
                    history.append((self.evidence.now, quota))

    async def _next_epoch(self) -> int:
        return await self.db.next_generation(ENVIRONMENT)


def _followed(known: list[Division], timeline: Sequence[Division]) -> list[Division]:
    """What was known of a topic's divisions, with those in place that are in force and to come now.

    What was to come may have been replaced before it began.
    """
    first = next((d.since_s for d in timeline if d.since_s), None)
    if first is not None:
        return [d for d in known if d.since_s < first] + [d for d in timeline if d.since_s >= first]
    last = max((i for i, d in enumerate(known) if d.same_shares(timeline[0])), default=None)
    return known if last is None else known[: last + 1]
