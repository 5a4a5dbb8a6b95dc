"""One host: a process's worth of consuming. `Host.run` starts every loop by name."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from emq import errors
from emq.allocation.membership import Membership
from emq.assignments import Assignments
from emq.catalog import Catalog
from emq.clock import Clock, SystemClock
from emq.dispatch.dispatcher import Dispatcher
from emq.dispatch.expiry import Expiry
from emq.dispatch.members import MemberSettler
from emq.dispatch.settler import Settler
from emq.fetcher.lanes import LaneClaimer
from emq.fetcher.puller import Puller
from emq.fetcher.readiness import Readiness
from emq.fetcher.slots import SlotClaimer
from emq.fetcher.waker import Waker
from emq.handlers import Handlers
from emq.message import Message
from emq.model import quota_of
from emq.offsets.checkpointer import CHECKPOINT_S, Checkpointer
from emq.offsets.checkpoints import CheckpointStore
from emq.owned import Gauge, OwnedGroup
from emq.ownership import DRAIN_S, Ownership
from emq.retirement import Retirement
from emq.schedule.firing import Firing
from emq.statistics import HostStatistics, Recorder
from emq.storage import Store
from emq.trail.sink import NullTrail, TrailSink

log = logging.getLogger(__name__)

CATALOG_POLL_S = 0.5
"""How soon a change of the catalog counts; one tiny query each time, whatever the number of topics."""

TRY_AGAIN_S = 1.0

HAND_OVER_S = 5.0
"""How long, beside the messages in flight, a stop waits for the other hosts to take the groups over."""

CANCEL_AGAIN_S = 2.0


class HostOptions(msgspec.Struct, frozen=True):
    """Attributes:
    checkpoint_s: seconds between checkpoints.
    drain_s: seconds that a stop or a move waits for messages in flight.
    catalog_poll_s: seconds between looks at the catalog's version.
    max_in_flight: most messages started and not settled on this host.
    """

    checkpoint_s: float = CHECKPOINT_S
    drain_s: float = DRAIN_S
    catalog_poll_s: float = CATALOG_POLL_S
    max_in_flight: int = 20_000


class Host:
    """Consumes the groups that its membership assigns to it, until told to stop.

    States: *created*, *running* (`run` was awaited), *stopping* (`stop`: nothing more starts, messages in flight are
    awaited for `drain_s`, progress is saved, groups are released, membership ends), *stopped* (`run` has returned).
    A clean stop repeats nothing. Cancelling `run` stops without draining, as a crash would, except that progress made
    so far is saved.
    """

    def __init__(
        self,
        store: Store,
        catalog: Catalog,
        checkpoints: CheckpointStore,
        membership: Membership,
        handlers: Handlers,
        *,
        clock: Clock | None = None,
        trail: TrailSink | None = None,
        options: HostOptions | None = None,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._membership = membership
        self._options = options = options or HostOptions()
        self._clock = clock = clock or SystemClock()
        self._trail = trail = trail or NullTrail()
        self._gauge = Gauge()
        self._version = 0
        self._refreshing = asyncio.Lock()
        self._stop = asyncio.Event()

        self.ownership = ownership = Ownership(store, checkpoints, handlers, clock, trail, self._gauge)
        self.assignments = assignments = Assignments(
            membership, ownership, clock, options.drain_s, self._look_at_catalog
        )
        self.running = assignments.ready
        """Set once the first assignment is acquired."""

        lost, lease = assignments.fenced, membership.lease
        self.readiness = Readiness()
        self.checkpointer = Checkpointer(checkpoints, store.log, clock, on_lost=lost, interval_s=options.checkpoint_s)
        self.members = MemberSettler(store.sorted, on_acknowledged=self._acknowledged, on_lost=lost)
        self.settler = Settler(
            store.lanes,
            self.members,
            clock,
            trail,
            on_acknowledged=self._acknowledged,
            on_settled=self._settled,
            on_due=self._due,
            on_lost=lost,
        )
        self.dispatcher = dispatcher = Dispatcher(
            clock, self.settler, trail, self._drained, self.checkpointer.dirty, options.max_in_flight, lease
        )
        self.expiry = Expiry(clock, dispatcher.expire, self._drained)
        self.firing = Firing(store.lanes, clock, trail, on_due=self._due, on_lost=lost)
        self.lanes = LaneClaimer(
            store.lanes,
            clock,
            on_buffered=dispatcher.ready,
            on_expiring=self.expiry.watch,
            on_schedule=self.firing.put,
            on_claimed=self.settler.claimed,
            on_lost=lost,
            lease=lease,
        )
        self.slots = SlotClaimer(
            store.sorted,
            clock,
            on_buffered=dispatcher.ready,
            on_expiring=self.expiry.watch,
            on_lost=lost,
            lease=lease,
        )
        self.puller = Puller(
            store.log,
            self.readiness,
            self._gauge,
            clock,
            trail,
            on_buffered=dispatcher.ready,
            on_expiring=self.expiry.watch,
            on_dirty=self.checkpointer.dirty,
            on_lost=lost,
            lease=lease,
        )
        self.waker = Waker(
            store, ownership.queues, ownership.groups, self.readiness, self.lanes.woken, self.slots.woken
        )
        self._recorder = Recorder(self, self._gauge, checkpoints, membership.host, clock)
        self.retirement = Retirement(catalog, store, checkpoints, ownership.shrunk)
        ownership.loops.dispatcher = self.dispatcher
        ownership.loops.readiness = self.readiness
        ownership.loops.unsettled = lambda group: dispatcher.unsettled(group) + self.firing.unsettled(group)
        ownership.loops.lanes = self.lanes
        ownership.loops.slots = self.slots
        ownership.loops.checkpointer = self.checkpointer

    async def run(self) -> None:
        """Consume until `stop` is called.

        Raises:
            HostConflict: another host holds the place; stop it first.
            Exception: a loop broke, which is a bug of ours; progress made so far is saved.
        """
        self.waker.open()
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
            "expiry": self.expiry.expire,
            "settle": self.settler.settle,
            "members 1": self.members.run,
            "members 2": self.members.run,
            "checkpoint": self.checkpointer.checkpoint,
            "retirement": self.retirement.watch,
            "statistics": self._recorder.record,
        }
        tasks = [asyncio.create_task(loop(), name=f"emq {name}") for name, loop in loops.items()]
        stop = asyncio.create_task(self._stop.wait(), name="emq stop")
        try:
            done, _ = await asyncio.wait([stop, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stop}:
                await task
            await self._drain()
        finally:
            self.running.clear()
            await self._end([stop, *tasks])

    async def _joined(self) -> bool:
        """Become a member, which takes as long as the cluster is out of reach; False if told to stop before."""
        joining = asyncio.create_task(self._membership.join(), name="emq join")
        stop = asyncio.create_task(self._stop.wait(), name="emq stop")
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(self._not_joined, joining)
            undo.callback(stop.cancel)
            await asyncio.wait([joining, stop], return_when=asyncio.FIRST_COMPLETED)
            if not joining.done():
                return False
            await joining
            undo.pop_all()
        stop.cancel()
        return True

    async def _not_joined(self, joining: asyncio.Task[None]) -> None:
        joining.cancel()
        await asyncio.gather(joining, return_exceptions=True)
        with contextlib.suppress(errors.EMQError):
            await self._membership.leave()

    def stop(self) -> None:
        """Begin a clean stop; `run` returns when it is done. Safe to repeat, and to call from a signal handler."""
        self._stop.set()

    def statistics(self) -> HostStatistics:
        """A snapshot: totals of this moment, rates and busiest topics of the last second or so. Cheap."""
        return self._recorder.latest()

    async def _drain(self) -> None:
        await self._membership.hand_over(self._options.drain_s + HAND_OVER_S)
        await self.dispatcher.stop()
        await self.ownership.release(list(self.ownership.groups), self._options.drain_s)

    async def _end(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        await self.dispatcher.stop()
        await self.dispatcher.cancel()
        running = set(tasks)
        while running:
            # More than once, should a library have taken a cancellation for its own time-out.
            for task in running:
                task.cancel()
            _, running = await asyncio.wait(running, timeout=CANCEL_AGAIN_S)
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(errors.EMQError):
            await self.checkpointer.save()
        await self._recorder.forget()
        with contextlib.suppress(errors.EMQError):  # the others will find out without being told
            await self._membership.leave()

    # -------------------------------------------------------------------------------------- allocation and catalog

    async def _follow_catalog(self) -> None:
        """Take over changes of the catalog, and tell the membership which groups there are."""
        while True:
            try:
                if self._version == 0 or await self._catalog.version() != self._version:
                    await self.refresh()
            except errors.DatabaseUnavailable as exc:
                log.warning("%s; the catalog stays as it is", exc)
                await asyncio.sleep(TRY_AGAIN_S)
            await asyncio.sleep(self._options.catalog_poll_s)

    async def refresh(self) -> None:
        """Look at the catalog now."""
        async with self._refreshing:
            await self._refresh()

    async def _refresh(self) -> None:
        changes = await self._catalog.changes_since(self._version)
        if changes.deleted:
            # On its own first: a topic that was deleted and created again has new groups under old names.
            self.ownership.apply((), changes.deleted)
            await self._offer(changes.version)
        self.ownership.apply(changes.changed, ())
        if changes.changed or self._version == 0:
            await self._offer(changes.version)
        self._version = changes.version

    async def _offer(self, version: int) -> None:
        topics = self.ownership.topics.values()
        quotas = {t.group(i): quota_of(t, i) for t in topics for i in range(t.groups)}
        await self._membership.offer(quotas, version)

    async def _look_at_catalog(self, version: int) -> None:
        """Unless it is known to be as new as `version`."""
        if version > self._version:
            await self.refresh()

    # -------------------------------------------------------------------------------------------------- small wiring

    def _settled(self, group: OwnedGroup, message: Message) -> None:
        self.dispatcher.settled(group, message)

    def _acknowledged(self, group: OwnedGroup, n: int) -> None:
        self.dispatcher.acknowledged(group, n)

    def _due(self, slot: str, due_ms: int) -> None:
        self.lanes.at(slot, due_ms)

    def _drained(self, group: OwnedGroup) -> None:
        if group.slot is None:
            self.readiness.drained(group)
        else:
            self.slots.drained(group.slot)
