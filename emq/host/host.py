"""One host, the part of a process that consumes. `Host.loops` names every loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from emq.allocation.bucket_membership import BucketMembership
from emq.allocation.membership import Membership
from emq.database import levels
from emq.database.database import QUICK_S
from emq.fetcher.readiness import Waker
from emq.groups.events import GROUP_LOOPS
from emq.host.assignments import Assignments
from emq.host.catalog_loop import CatalogLoop
from emq.host.consumption import Consumption
from emq.host.forgetting import Forgetting
from emq.host.group_work import GroupWork
from emq.host.handlers import Handlers
from emq.host.lag_sampler import LagSampler
from emq.host.last_steps import LEAST_STEP_S, LastSteps, end_all
from emq.host.letting_go import LettingGo
from emq.host.options import HostOptions
from emq.host.orphan_watch import OrphanWatch
from emq.host.ownership import Ownership
from emq.host.passage_loop import PassageLoop
from emq.host.recorder import Recorder
from emq.host.reports import Reports
from emq.host.retirement import Retirement
from emq.host.sleeping import Sleeping
from emq.host.statistics import HostStatistics
from emq.host.surroundings import Services, Storage
from emq.host.throttles import Throttles
from emq.host.watched_topics import WatchedTopics
from emq.runtime import errors, patience
from emq.runtime.guard import Guard
from emq.topics.passages import PassageStore

log = logging.getLogger(__name__)

HAND_OVER_S = 5.0
"""Seconds, beyond `drain_s`, that a stop waits for the other hosts to take the groups over."""


class Host:
    """Consumes the groups that its membership assigns to it, until told to stop.

    States: *created*, *running* (`run` was awaited), *stopping* (`stop` was called: the host starts nothing more, waits
    up to `drain_s` seconds for messages in flight, saves progress, releases its groups and leaves the membership),
    *stopped* (`run` has returned). A clean stop repeats nothing. Cancelling `run` stops without draining, as a crash
    would, but the host still saves the progress made so far.

    Attributes:
        work: the parts that work on groups.
        running: set once the first assignment is acquired.
    """

    def __init__(
        self,
        storage: Storage,
        membership: Membership,
        handlers: Handlers,
        services: Services | None = None,
        options: HostOptions | None = None,
    ) -> None:
        services, options = services or Services(), options or HostOptions()
        store, checkpoints, clock = storage.store, storage.checkpoints, services.clock
        self.options = options
        self.deliveries, self.timekeeper = services.deliveries, services.timekeeper
        self._neighbours = services.neighbours
        self._checkpoints, self._clock = checkpoints, clock
        self.membership = BucketMembership(membership, clock)
        self.database, self.records = checkpoints.database, services.records
        self._is_member = False
        self._stop = asyncio.Event()
        self._last_steps = LastSteps()
        self.guard = getattr(membership, "guard", None) or Guard()
        self.guard.names.update(GROUP_LOOPS)  # so that the metrics count from 0: an alert sees no first value
        if self.timekeeper is not None:
            self.timekeeper.bind(membership.lease)

        self.reports = reports = Reports()
        context = services.context(reports, membership.lease)
        self.work = GroupWork(storage, context, options)
        self.ownership = ownership = Ownership(storage, handlers, self.work, context, options.window_begins_ms / 1000)
        self.letting_go = LettingGo(ownership, context)
        self.throttles = Throttles(ownership.owned, self.work.dispatcher, clock, services.trail)
        passages = PassageStore(checkpoints.database, checkpoints.environment, checkpoints.stores)
        self.passage = PassageLoop(store, passages, storage.catalog, ownership, context)
        self.retirement = Retirement(storage.catalog, store, checkpoints, ownership.changing, clock)
        self.forgetting = Forgetting(storage, self.membership, context)
        self.orphans = OrphanWatch(store, storage.catalog, ownership.topics, self.membership)
        self.catalog = CatalogLoop(storage, self.membership, ownership, self.orphans, options.catalog_poll_s)
        queues, groups, broken = ownership.queues, ownership.groups, self.guard.broken.total
        self.waker = Waker(store, queues, groups, self.work.readiness, context, broken, self.catalog.told)
        self.assignments = Assignments(
            self.membership, ownership, self.letting_go, self.catalog, clock, options.drain_s
        )
        self.sleeping = Sleeping(storage, ownership.changing, self.catalog, self.assignments, clock)
        self.running = self.assignments.ready
        reports.connect(self.work, self.assignments, self.passage, self.throttles, self.guard)

        self.lag = LagSampler(ownership, store, clock, options.lag_s, skips_quiet=services.deliveries is None)
        self.watched = WatchedTopics(ownership.owned, clock)
        self.consumption = Consumption(self.membership, ownership, self.assignments.trouble, options.drain_s)
        self.recorder = Recorder(self, checkpoints, clock)

    def loops(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """Return every loop of this host by its name; each runs until it is cancelled."""
        work = self.work
        loops: dict[str, Callable[[], Awaitable[None]]] = {
            "catalog": self.catalog.follow,
            "assignments": self.assignments.follow,
            "allocation": self.assignments.carry_out,
            "wake-ups": self.waker.listen,
            "sweep": self.waker.sweep,
            "fetch 1": work.puller.pull,
            "fetch 2": work.puller.pull,
            "lanes": work.lanes.claim,
            "slots 1": work.slots.claim,
            "slots 2": work.slots.claim,
            "slot sweep": work.slots.sweep.run,
            "schedules": work.firing.run,
            "forwarding": work.forwarder.run,
            "passage": self.passage.run,
            "expiry": work.expiry.expire,
            "settle": work.settler.settle,
            "members 1": work.settler.members.run,
            "members 2": work.settler.members.run,
            "checkpoint": work.checkpointer.checkpoint,
            "retirement": self.retirement.watch,
            "orphans": self.orphans.watch,
            "forgetting": self.forgetting.watch,
            "statistics": self.recorder.record,
            "watched": self.watched.sample,
            "lag": self.lag.sample,
        }
        if self.sleeping.is_safe:
            loops["sleeping"] = self.sleeping.watch
        if self.timekeeper is not None:
            loops["clock"] = self.timekeeper.keep
        if self._neighbours is not None:
            loops["neighbours"] = self._neighbours.watch
        return loops

    async def run(self) -> None:
        """Consume until `stop` is called.

        Raises:
            HostConflict: another host holds the place, or consumes from the store with another database: stop it
                first. Or this version cannot read what the environment's hosts write: upgrade it.
            ForeignTree: EMQ did not write the coordination tree.
        """
        self.waker.open()
        self.work.dispatcher.tasks.open()
        if not await self._joined():
            return
        tasks = self.guard.start(self.loops())
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
                    await self.membership.leave()

    async def _arrive(self) -> None:
        if self.timekeeper is not None:
            # Without the known time, the machine's clock would time leases and quotas, and may be hours ahead.
            await self._arrived("database", self.timekeeper.known)
        if self._neighbours is not None:
            await self._arrived("store and database", self._neighbours.arrive)
        if (stores := self._checkpoints.stores) is not None:
            await self._arrived("store and database", stores.arrive)
        await self._arrived("database", self._check_level)
        await self._arrived("cluster", self.membership.join)
        try:
            await self._arrived("database", self._check_level)  # it may have been raised in that moment
        except errors.HostConflict:
            await self.membership.leave()
            raise

    async def _arrived(self, server: str, step: Callable[[], Awaitable[object]]) -> None:
        """Take a step of the arrival: again and again until the server answers, and after an error of no known kind."""
        await patience.waited(server, step, on_bug=lambda exc: self.guard.note("joining", "it tries again", exc))

    async def _check_level(self) -> None:
        """Raise `HostConflict` if this version cannot read the environment's present or announced feature level."""
        environment = self._checkpoints.environment
        await self.database.run(lambda c: levels.join(c, environment), deadline_s=QUICK_S)

    def stop(self) -> None:
        """Begin a clean stop; `run` returns when it is done. Safe to repeat, and to call from a signal handler."""
        self._stop.set()

    def statistics(self) -> HostStatistics:
        """Return a snapshot: totals of this moment, rates and busiest topics of about the last second. Cheap."""
        return self.recorder.latest()

    @property
    def name(self) -> str:
        """The host's name in its cluster. Any thread may ask."""
        return self.membership.host

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
        return group is not None and not group.stopping and self._clock.now() < self.membership.lease.until

    def holds(self, topic: str) -> bool:
        """Return True while no other host can have the topic's first group: this host has it, or lets go of it.

        Unlike `owns`, this does not change while the time is unknown for a moment. Once it is False, another host may
        have begun again what was in flight here.
        """
        return f"{topic}/0" in self.ownership.groups and self._clock.now() < self.membership.lease.granted_until

    def epoch_of(self, topic: str) -> int | None:
        """Return the epoch under which this host has the topic's first group; None if not, or while it lets go of it.

        It stays the same while the host's lease has lapsed and the host may start nothing.
        """
        group = self.ownership.groups.get(f"{topic}/0")
        return None if group is None or group.stopping else group.epoch

    async def _drain(self) -> None:
        if not self.database.away_s:  # without the database, no host can take a group over
            most_s = self.options.drain_s + HAND_OVER_S
            async with self._last_steps.step("handing its groups over", most_s + LEAST_STEP_S):
                await self.membership.hand_over(most_s)
        await self.work.dispatcher.stop()
        self.assignments.stop()
        self._last_steps.begin(self.options.drain_s)
        async with self._last_steps.step("letting go of the groups"):
            await self.letting_go.release(list(self.ownership.groups), self.options.drain_s)

    async def _end(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        try:
            await self.work.dispatcher.stop()
            await self.work.dispatcher.tasks.cancel()
        except Exception:  # the steps after it matter no less
            log.exception("stopping, although not all handlers have ended")
        finally:
            await end_all(tasks)
        async with self._last_steps.step("the last lines of its logs"):
            self.work.settler.failures.close()
            self.ownership.losses.say()
        async with self._last_steps.step("saving the last progress"):
            await self.work.checkpointer.save()
            await self.recorder.forget()
        if self.timekeeper is not None:
            self.timekeeper.unbind(self.membership.lease)
        async with self._last_steps.step("leaving the cluster"):  # else the other hosts notice later
            await self.membership.leave()
        if self._neighbours is not None:
            async with self._last_steps.step("taking its sign from the store"):
                await self._neighbours.depart()
