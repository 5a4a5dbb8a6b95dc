"""One host, the part of a process that consumes. `Host.run` starts every loop by name."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from emq import errors
from emq.allocation.membership import Membership
from emq.database import levels
from emq.database.database import QUICK_S
from emq.dispatch import retry
from emq.dispatch.dispatcher import Dispatcher
from emq.dispatch.expiry import Expiry
from emq.dispatch.settler import Settler
from emq.dispatch.slot_settler import MemberSettler
from emq.fetcher.forwarder import Forwarder
from emq.fetcher.lane_claimer import LaneClaimer
from emq.fetcher.puller import Puller
from emq.fetcher.readiness import Readiness, Waker
from emq.fetcher.slot_claimer import SlotClaimer
from emq.groups.capacity import Gauge
from emq.groups.context import HostContext
from emq.groups.events import GROUP_LOOPS, GroupLoop, HostEvents
from emq.groups.owned import OwnedGroup, OwnedQueue
from emq.host.assignments import Assignments
from emq.host.consumption import Consumption
from emq.host.group_loops import Loops
from emq.host.group_quotas import GroupQuotas
from emq.host.handlers import Handlers
from emq.host.lag_sampler import LagSampler
from emq.host.last_steps import LastSteps, end_all
from emq.host.orphan_watch import OrphanWatch
from emq.host.ownership import DRAIN_S, Ownership
from emq.host.passage_loop import PassageLoop
from emq.host.recorder import Parts, Recorder
from emq.host.retirement import Retirement
from emq.host.statistics import HostStatistics
from emq.host.surroundings import Services, Storage
from emq.host.throttles import Throttles
from emq.host.watched_tenants import WatchedTenants
from emq.loops import patience
from emq.loops.guard import Guard
from emq.message import Message
from emq.offsets.checkpointer import CHECKPOINT_S, MAX_UNSAVED_S, Checkpointer
from emq.quota.topic_counter import WINDOW_BEGINS_MS
from emq.timetable.firing import Firing
from emq.topics.passages import PassageStore
from emq.trail import events

log = logging.getLogger(__name__)

CATALOG_POLL_S = 0.5
"""Seconds between looks at the catalog's version. Each look is one small query, whatever the number of topics."""

TRY_AGAIN_S = 1.0

HAND_OVER_S = 5.0
"""Seconds, beyond `drain_s`, that a stop waits for the other hosts to take the groups over."""


class HostOptions(msgspec.Struct, frozen=True):
    """Attributes:
    checkpoint_s: seconds between checkpoints.
    max_unsaved_s: seconds of its quota for which a group goes on while no checkpoint can be saved.
    drain_s: seconds that a stop or a move waits for messages in flight.
    catalog_poll_s: seconds between looks at the catalog's version.
    max_in_flight: most messages started and not settled on this host; topics that settle nothing
        share half of these places.
    window_begins_ms: milliseconds into each second before which topics that count by the second start nothing.
    """

    checkpoint_s: float = CHECKPOINT_S
    max_unsaved_s: float = MAX_UNSAVED_S
    drain_s: float = DRAIN_S
    catalog_poll_s: float = CATALOG_POLL_S
    max_in_flight: int = 20_000
    window_begins_ms: float = WINDOW_BEGINS_MS


class Host(HostEvents):
    """Consumes the groups that its membership assigns to it, until told to stop.

    States: *created*, *running* (`run` was awaited), *stopping* (`stop` was called: the host starts nothing more, waits
    up to `drain_s` seconds for messages in flight, saves progress, releases its groups and leaves the membership),
    *stopped* (`run` has returned). A clean stop repeats nothing. Cancelling `run` stops without draining, as a crash
    would, but the host still saves the progress made so far.
    """

    def __init__(
        self,
        storage: Storage,
        membership: Membership,
        handlers: Handlers,
        services: Services | None = None,
        options: HostOptions | None = None,
    ) -> None:
        store, catalog, checkpoints = storage.store, storage.catalog, storage.checkpoints
        services = services or Services()
        clock, timekeeper, trail = services.clock, services.timekeeper, services.trail
        self._catalog = catalog
        self._stores = checkpoints.stores
        self._database, self._environment = checkpoints.database, checkpoints.environment
        self._membership = membership
        self.options = options = options or HostOptions()
        self._neighbours = services.neighbours
        self._gauge = Gauge()
        self.guard = getattr(membership, "guard", None) or Guard()
        self.guard.names.update(GROUP_LOOPS)  # so that the metrics count from 0: an alert sees no first value
        self.on_deleted: list[Callable[[str], None]] = []
        self._version = 0
        self._must_offer = True
        self._is_member = False
        self._refreshing = asyncio.Lock()
        self._quotas = GroupQuotas()
        self._stop = asyncio.Event()
        self._last_steps = LastSteps()

        self._lease = membership.lease
        context = HostContext(clock, self, trail, self._lease, self._gauge, services.deliveries, services.records)
        self.readiness = Readiness(lambda: self.checkpointer.soon())
        self.puller = Puller(store.log, self.readiness, context)
        self.lanes = LaneClaimer(store.lanes, context)
        self.slots = SlotClaimer(store.sorted, context)
        self.members = MemberSettler(store.sorted, context)
        self.settler = Settler(store.lanes, self.members, context)
        self.dispatcher = Dispatcher(self.settler, context, options.max_in_flight, self.slots)
        self.expiry = Expiry(context)
        self.firing = Firing(store.lanes, store.sorted, context)
        self.forwarder = Forwarder(store.lanes, catalog.get, context)
        self.checkpointer = Checkpointer(checkpoints, store.log, context, options.checkpoint_s, options.max_unsaved_s)
        loops = Loops(
            self.readiness,
            self.lanes,
            self.slots,
            self.dispatcher,
            self.expiry,
            self.firing,
            self.forwarder,
            self.checkpointer,
            self._look,
        )
        self.ownership = ownership = Ownership(
            store, checkpoints, handlers, loops, context, options.window_begins_ms / 1000
        )
        self.throttles = Throttles(ownership.owned, self.dispatcher, clock)
        self.waker = Waker(store, ownership.queues, ownership.groups, self.readiness, context)
        passages = PassageStore(checkpoints.database, checkpoints.environment, checkpoints.stores)
        self.passage = PassageLoop(store.log, passages, catalog, ownership, context)
        self.retirement = Retirement(catalog, store, checkpoints, ownership, clock)
        self.orphans = OrphanWatch(store, catalog, ownership.topics, membership)
        self.assignments = Assignments(membership, ownership, clock, options.drain_s, self._look_at_catalog)
        self.running = self.assignments.ready
        """Set once the first assignment is acquired."""
        self.timekeeper = timekeeper
        if timekeeper is not None:
            timekeeper.bind(membership.lease)
        self.lag = LagSampler(ownership, store, clock, skips_quiet=services.deliveries is None)
        self.parts = parts = Parts(
            ownership,
            self.puller,
            self.settler,
            self.guard,
            timekeeper,
            self._gauge,
            membership,
            checkpoints.database,
            self.lag,
            WatchedTenants(ownership.owned, clock),
            Consumption(membership, ownership, lambda: self.assignments.trouble, options.drain_s),
        )
        self.recorder = Recorder(parts, checkpoints, membership.host, clock)
        self.deliveries = services.deliveries
        self._clock, self._trail = clock, trail

    async def run(self) -> None:
        """Consume until `stop` is called.

        Raises:
            HostConflict: another host holds the place, or consumes from the store with another database: stop it
                first. Or this version cannot read what the environment's hosts write: upgrade it.
            ForeignTree: the coordination tree holds what EMQ did not write.
        """
        self.waker.open()
        self.dispatcher.open()
        if not await self._joined():
            return
        loops = {
            "catalog": self._follow_catalog,
            "assignments": self.assignments.follow,
            "allocation": self.assignments.carry_out,
            "wake-ups": self.waker.listen,
            "sweep": self.waker.sweep,
            "fetch 1": self.puller.pull,
            "fetch 2": self.puller.pull,
            "lanes": self.lanes.claim,
            "slots 1": self.slots.claim,
            "slots 2": self.slots.claim,
            "slot sweep": self.slots.sweep,
            "schedules": self.firing.run,
            "forwarding": self.forwarder.run,
            "passage": self.passage.run,
            "expiry": self.expiry.expire,
            "settle": self.settler.settle,
            "members 1": self.members.run,
            "members 2": self.members.run,
            "checkpoint": self.checkpointer.checkpoint,
            "retirement": self.retirement.watch,
            "orphans": self.orphans.watch,
            "statistics": self.recorder.record,
            "watched": self.parts.watched.sample,
            "lag": self.lag.sample,
        }
        if self.timekeeper is not None:
            loops["clock"] = self.timekeeper.keep
        if self._neighbours is not None:
            loops["neighbours"] = self._neighbours.watch
        tasks = self.guard.start(loops)
        stop = asyncio.create_task(self._stop.wait(), name="emq stop")
        try:
            done, _ = await asyncio.wait([stop, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stop}:
                await task
            await self._drain()
        finally:
            self._is_member = False
            self.running.clear()
            await self._end([stop, *tasks])

    async def _joined(self) -> bool:
        """Become a member; wait while a server is out of reach. Return False if `stop` was called before."""
        joining = asyncio.create_task(self._arrive(), name="emq join")
        stop = asyncio.create_task(self._stop.wait(), name="emq stop")
        try:
            await asyncio.wait([joining, stop], return_when=asyncio.FIRST_COMPLETED)
            if joining.done():
                await joining
                self._is_member = True
            return self._is_member
        finally:
            stop.cancel()
            if not self._is_member:
                joining.cancel()
                await asyncio.gather(joining, return_exceptions=True)
                with contextlib.suppress(errors.EMQError):
                    await self._membership.leave()

    async def _arrive(self) -> None:
        if self.timekeeper is not None:
            # Without the known time, the machine's clock would time leases and quotas, and may be hours ahead.
            await self.timekeeper.known()
        if self._neighbours is not None:
            await self._neighbours.arrive()
        if self._stores is not None:
            await patience.waited("store and database", self._stores.arrive)
        await patience.waited("database", self._check_level)
        await self._membership.join()
        try:
            await patience.waited("database", self._check_level)  # it may have been raised in that moment
        except errors.HostConflict:
            await self._membership.leave()
            raise

    async def _check_level(self) -> None:
        """Raise `HostConflict` if this version cannot read all that is written in the environment, or will be."""
        await self._database.run(lambda c: levels.join(c, self._environment), deadline_s=QUICK_S)

    def stop(self) -> None:
        """Begin a clean stop; `run` returns when it is done. Safe to repeat, and to call from a signal handler."""
        self._stop.set()

    def statistics(self) -> HostStatistics:
        """Return a snapshot: totals of this moment, rates and busiest topics of about the last second. Cheap."""
        return self.recorder.latest()

    @property
    def store_unreachable(self) -> str | None:
        """The error of the store, or of the part of it that does not answer; None while all is well."""
        return self.recorder.store_unreachable

    @property
    def is_stopping(self) -> bool:
        """True once `stop` was called."""
        return self._stop.is_set()

    @property
    def is_member(self) -> bool:
        """True from the time when the host has joined its cluster until it begins to leave."""
        return self._is_member

    def owns(self, topic: str) -> bool:
        """Return True while this host may start messages of the topic's first group; False once it lets go of it."""
        group = self.ownership.groups.get(f"{topic}/0")
        return group is not None and not group.stopping and self._clock.now() < self._lease.until

    def epoch_of(self, topic: str) -> int | None:
        """Return the epoch under which this host has the topic's first group; None if not, or while it lets go of it.

        It stays the same while the host's lease has lapsed and the host may start nothing.
        """
        group = self.ownership.groups.get(f"{topic}/0")
        return None if group is None or group.stopping else group.epoch

    @property
    def catalog_version(self) -> int:
        """The version of the catalog that the host knows; 0 before the first look."""
        return self._version

    async def _drain(self) -> None:
        if not self.parts.database.away_s:  # without the database, no host can take a group over
            await self._membership.hand_over(self.options.drain_s + HAND_OVER_S)
        await self.dispatcher.stop()
        self.assignments.stop()
        self._last_steps.begin(self.options.drain_s)
        async with self._last_steps.step("letting go of the groups"):
            await self.ownership.release(list(self.ownership.groups), self.options.drain_s)

    async def _end(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        await self.dispatcher.stop()
        await self.dispatcher.cancel()
        await end_all(tasks)
        self.settler.close()
        self.ownership.losses.say()
        async with self._last_steps.step("saving the last progress"):
            await self.checkpointer.save()
            await self.recorder.forget()
        if self.timekeeper is not None:
            self.timekeeper.unbind(self._membership.lease)
        async with self._last_steps.step("leaving the cluster"):  # without this step the other hosts find out later
            await self._membership.leave()
        if self._neighbours is not None:
            async with self._last_steps.step("taking its sign from the store"):
                await self._neighbours.depart()

    # -------------------------------------------------------------------------------------- allocation and catalog

    async def _follow_catalog(self) -> None:
        """Follow the catalog's changes, and tell the membership which groups exist. Ends by cancellation."""
        while True:
            try:
                await self._look()
            except errors.DatabaseUnavailable:
                await asyncio.sleep(TRY_AGAIN_S)  # the known catalog stays in use; the database has logged why
            await asyncio.sleep(self.options.catalog_poll_s)

    async def _look(self) -> None:
        """Read the catalog if it has changed."""
        if self._version == 0 or await self._catalog.version() != self._version:
            await self.refresh()

    async def refresh(self) -> None:
        """Read the changes of the catalog now."""
        async with self._refreshing:
            await self._database.run(lambda c: levels.check(c, self._environment), read_only=True, deadline_s=QUICK_S)
            changes = await self._catalog.changes_since(self._version)
            if changes.all:
                log.warning("the database has lost changes of the catalog; going by version %d", changes.version)
                self.checkpointer.save_again(self.ownership.groups.values())
                self.orphans.soon()
            if gone := changes.gone(self.ownership.topics):
                # Deletions go first, alone: a topic deleted and created again has new groups under old names.
                self._must_offer = True  # until the membership has been told: an error may come in between
                await self.ownership.apply((), gone)
                for name in gone:
                    for forget in self.on_deleted:
                        forget(name)
                await self._offer(changes.version)
            created = any(topic.name not in self.ownership.topics for topic in changes.changed)
            self._must_offer = self._must_offer or bool(changes.changed)
            former = await self.ownership.apply(changes.changed, ())
            if self._must_offer:
                await self._offer(changes.version)
            self._version = changes.version
            if created:
                self.assignments.created(former)

    async def _offer(self, version: int) -> None:
        """Tell the membership which groups exist and their quotas."""
        topics = self.ownership.topics
        offered, units = await self._quotas.of(topics), await self._quotas.units(topics)
        await self._membership.offer(offered, version, units)
        self._must_offer = False

    async def _look_at_catalog(self, version: int) -> None:
        """Read the catalog unless the host already knows this version or a newer one."""
        if version > self._version:
            await self.refresh()

    # ------------------------------------------------------------------------- what follows from what the parts report

    def ready(self, group: OwnedGroup) -> None:
        self.dispatcher.ready(group)

    def expiring(self, group: OwnedGroup) -> None:
        self.expiry.watch(group)

    def claimed(self, group: OwnedGroup, id_: str) -> None:
        self.settler.claimed(group, id_)
        self.firing.claimed(group, id_)

    def schedule_due(self, group: OwnedGroup, message: Message) -> None:
        self.firing.put(group, message)

    def moved(self, group: OwnedGroup, message: Message, body: bytes, now_ms: int) -> None:
        self.forwarder.put(group, message, body, now_ms)

    def damaged(self, group: OwnedGroup, message: Message, reason: str) -> None:
        self.dispatcher.damaged(group, message, reason)

    def expired(self, group: OwnedGroup, message: Message) -> None:
        self.dispatcher.expire(group, message)

    def drained(self, group: OwnedGroup) -> None:
        if group.slot is None:
            self.readiness.drained(group)
        else:
            self.slots.drained(group.slot)

    def acknowledged(self, group: OwnedGroup, n: int) -> None:
        self.dispatcher.acknowledged(group, n)

    def settled(self, group: OwnedGroup, message: Message) -> None:
        self.dispatcher.settled(group, message)

    def given_back(self, group: OwnedGroup, message: Message, failure: errors.GiveBack) -> None:
        name, reason = group.owner.topic.name, retry.describe(failure)
        self.throttles.pause(name, retry.pause_s(failure), reason)
        if self._trail.enabled:
            self._trail.record(events.Returned(self._clock.now_us(), message, reason))

    def refused(self, group: OwnedGroup, message: Message) -> None:
        self.dispatcher.refused(group, message)

    def due(self, name: str, due_ms: int) -> None:
        if name.endswith("/"):  # the address of a slot
            self.slots.rests(name, due_ms)
        else:
            self.lanes.at(name, due_ms)

    def dirty(self, queue: OwnedQueue) -> None:
        self.checkpointer.dirty(queue)

    def saved(self) -> None:
        self.readiness.checkpointed()

    def lanes_woken(self, names: Iterable[str]) -> None:
        self.lanes.woken(names)

    def slots_woken(self, addresses: Iterable[str]) -> None:
        self.slots.woken(addresses)

    def doubted(self, group: OwnedGroup) -> None:
        self.lanes.doubted(group)
        self.passage.doubted(group)

    def lost(self, group: OwnedGroup) -> None:
        self.assignments.fenced(group)

    def shrunk(self, group: OwnedGroup) -> None:
        self.assignments.shrunk(group)

    def broken(self, loop: GroupLoop, group: OwnedGroup, failure: Exception) -> None:
        """Take the group out of all loops and acquire it again from the store."""
        self.guard.note(loop, "the group starts again from its checkpoint", failure, group.name)
        self.assignments.shrunk(group)
