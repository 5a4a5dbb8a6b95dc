"""A pool on one host: takes the pool over and lets go of it, follows the catalog, saves a snapshot once a second."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from emq.runtime import errors
from emq.storage.message import Message
from emq_scheduling import fallbacks, given, topics
from emq_scheduling.hosting import trying
from emq_scheduling.hosting.attempt_records import AttemptRecords
from emq_scheduling.hosting.attempts import Dropped, Ended, NotNow, Performer, describe
from emq_scheduling.hosting.backlog import Backlog
from emq_scheduling.hosting.beats import Beats
from emq_scheduling.hosting.fast_tenants import FastTenants
from emq_scheduling.hosting.replies import Replies, Unstarted
from emq_scheduling.hosting.scheduler import Scheduler
from emq_scheduling.hosting.viewing import Viewer
from emq_scheduling.limits.usage_keeper import UsageKeeper, UsageTable
from emq_scheduling.pools.catalog import PoolCatalog, Stored
from emq_scheduling.records.cancels import CancelReader, Cancels
from emq_scheduling.records.ends import CANCELLED, DEAD, DONE, EXPIRED, FINAL, EndLog, us
from emq_scheduling.records.progress import Progress
from emq_scheduling.records.records import Records
from emq_scheduling.records.snapshots import Snapshots
from emq_scheduling.tasks import Task, task_of, with_tries

if TYPE_CHECKING:
    from emq.app import App

log = logging.getLogger(__name__)

TICK_S = 1.0
"""Seconds between looks at the catalog, at cancellations, and the snapshots."""

WATCH_S = 0.1
"""Seconds between looks whether this host owns the pool."""

PREPARE_S = 2.0
"""Seconds between looks for a pool that does not exist yet."""

TAKING_OVER_S = 0.2
"""Pause of a topic whose tasks come before the pool is taken over."""

LEAVE_S = 0.5
"""Seconds before the host must have let go at which running tasks are cancelled, so that they are given back in
time."""

LEAVE_STEP_S = 0.02
"""Seconds between looks whether running tasks have ended."""


class PoolHost:
    """One pool on this host.

    Args:
        performer: returns the performer of a task type, or None.
        ends: takes the records.
    """

    def __init__(
        self,
        app: App,
        name: str,
        catalog: PoolCatalog,
        ends: EndLog,
        performer: Callable[[str], Performer | None],
    ) -> None:
        self.name = name
        self.scheduler: Scheduler | None = None
        self._app = app
        self._catalog = catalog
        self._ends = ends
        self._performer = performer
        self._root = topics.root_name(name)
        self._stored: Stored | None = None
        self._adapted: tuple[int, dict[str, float]] | None = None  # version and gains that its topics follow
        self._viewer: Viewer | None = None
        self._fast: FastTenants | None = None
        self._epoch: int | None = None  # of the ownership in which the pool was taken over
        self._leaving: Scheduler | None = None
        self._is_missing = False
        self._is_prepared = False
        self._prepared_at = -math.inf
        environment = app.settings.environment
        self._replies = Replies(app, name)
        self._unstarted = Unstarted(ends, self._replies)
        self._cancels = Cancels(app.database, environment)
        self._asked = CancelReader(self._cancels, name)
        self._records = Records(app.database, environment)
        self._snapshots = Snapshots(app.database, environment)
        self._usage = UsageTable(app.database, environment)
        self._keeper: UsageKeeper | None = None
        self._progress = Progress(app.database, environment)
        self._beats = Beats(self._progress, name, app.clock)
        self._backlog = Backlog(app, self._root)
        self._attempts = AttemptRecords(ends)

    # --------------------------------------------------------------------------------------------------------- tasks

    async def handle(self, message: Message) -> None:
        """Handle a message of one of the pool's topics: the handler of the host."""
        scheduler, stored = self.scheduler, self._stored
        if scheduler is None or stored is None:
            if self._is_missing:
                raise errors.GiveBack(f"there is no pool {self.name!r} now", pause_s=TICK_S)
            raise errors.GiveBack(f"pool {self.name!r} is being taken over", pause_s=TAKING_OVER_S)
        _, kind, _ = topics.parsed(message.topic)
        if self._fast is not None:
            self._fast.came(message.topic)
        known = scheduler.pool.types.get(kind)
        try:
            task = task_of(message, None if known is None else known.longest_wait_s)
            given.check_carried(task.keys or {}, task.costs or {})
            if task.tries is not None:
                fallbacks.check_carried(task.tries, kind)
        except (ValueError, errors.InvalidMessage) as exc:
            raise errors.Reject(f"its header is not that of a task: {exc}") from None
        performer, returned = self._performer(kind), message.attempt - task.attempt
        if performer is None:
            raise errors.GiveBack(f"no performer of this host does tasks of type {kind!r}", pause_s=5.0)
        await self._ends.room()
        beats = self._beats
        try:
            await self._look_up(task, message.attempt, beats)
            if task.tries is None:
                result = await scheduler.perform(task, performer, returned)
            else:
                result = await trying.perform(task, self._performer, scheduler, self._app.clock, returned)
        except Dropped as exc:
            await self._dropped(task, exc, scheduler)
        except errors.GiveBack:
            raise
        except (NotNow, trying.Again) as exc:
            if known is not None and message.attempt >= known.max_attempts + topics.WAITS_FOR_HOURS:
                await self._dropped(task, Dropped(DEAD, exc.reason), scheduler)
            if isinstance(exc, trying.Again):
                message.headers = with_tries(message.headers, exc.tries)
                errors.tell_attempt(exc, task.attempt)
            raise
        except Exception as exc:
            told = exc
            if isinstance(exc, errors.Reject):
                await self._replies.send(task, DEAD, error=exc.reason)
            elif known is not None and task.attempt >= known.max_attempts:
                await self._replies.send(task, DEAD, error=describe(exc))
                told = errors.Reject(describe(exc))
            errors.tell_attempt(
                told, task.attempt, None if known is None else known.max_attempts
            )  # the topic's own numbers count waits, too
            if told is exc:
                raise
            raise told from exc
        else:
            await self._replies.send(task, DONE, result)
        finally:
            beats.leave(task, has_ended=False)

    async def _look_up(self, task: Task, delivery: int, beats: Beats) -> None:
        """Read how far the task came, if that may be known.

        Raises:
            Dropped: somebody asked to cancel it, also if this host has forgotten that.
            GiveBack: the database is away.
        """
        try:
            is_cancelled = await self._asked.concerns(task.id, task.submitted_us)
            if beats.may_have(task, delivery):
                await beats.look(task)
        except errors.DatabaseUnavailable as exc:
            raise errors.GiveBack(f"nobody knows what became of it: {exc}", pause_s=TICK_S) from exc
        if is_cancelled:
            raise Dropped(CANCELLED, "cancelled")

    def withdraws(self, message: Message) -> bool:
        """Record the end of a cancelled task that this host reads from the store; return True if it has ended.

        This is the `withdraws` of the host's handler. So cancelled tasks hold up no others, however many there are.
        """
        scheduler = self.scheduler
        if scheduler is None or not self._asked.remembered.concerns(message.id, message.published_us):
            return False
        try:
            task = task_of(message, None)
        except ValueError:
            return False  # `handle` rejects it
        if not self._unstarted.withdrawn(task, us(self._app.clock.now()), scheduler.version):
            return False
        scheduler.measured.dropped(task.type, CANCELLED)
        self._beats.ended_in_store(task, message.attempt)
        return True

    def expired(self, message: Message) -> None:
        """Take note of a message that expired before the scheduler had it: the `on_expired` of the host's handler."""
        task, scheduler = task_of(message, None), self.scheduler
        is_cancelled = self._asked.remembered.concerns(task.id, task.submitted_us)
        outcome = CANCELLED if is_cancelled else EXPIRED
        if scheduler is not None:
            scheduler.measured.dropped(task.type, outcome)
        self._beats.ended_in_store(task, message.attempt)
        version = 0 if self._stored is None else self._stored.version
        self._unstarted.expired(task, outcome, us(self._app.clock.now()), version)

    async def _dropped(self, task: Task, why: Dropped, scheduler: Scheduler) -> None:
        scheduler.measured.dropped(task.type, why.outcome)
        self._beats.leave(task, has_ended=True)
        await self._unstarted.dropped(task, why, us(self._app.clock.now()), scheduler.version)

    async def _on_ended(self, ended: Ended) -> None:
        if ended.outcome in FINAL:
            self._beats.leave(ended.task, has_ended=True)
        await self._attempts.ended(ended)

    # ---------------------------------------------------------------------------------------------------------- loops

    async def run(self) -> None:
        """Own the pool whenever this host does. Ends by cancellation."""
        try:
            while True:
                try:
                    await self._look()
                except errors.EMQError as exc:
                    log.warning("pool %r: %s; trying again", self.name, exc)
                    await asyncio.sleep(TICK_S)
                except Exception:
                    log.exception("pool %r: a look failed; trying again", self.name)
                    await asyncio.sleep(TICK_S)
        finally:
            await self._let_go()

    async def _look(self) -> None:
        epoch = self._app.epoch_of(self._root)
        if epoch != self._epoch:
            await self._let_go()
        if epoch is None:
            await self._prepare()
        if not self._app.owns(self._root):  # perhaps for a moment only, and under the same epoch
            await asyncio.sleep(WATCH_S)
            return
        if self.scheduler is None:
            await self._take_over(epoch)
        else:
            await self._tick(self.scheduler)
        for _ in range(round(TICK_S / WATCH_S)):
            if self._app.epoch_of(self._root) == epoch:
                await asyncio.sleep(WATCH_S)

    def is_busy(self) -> bool:
        """Return whether the pool must stay here, since its limits in flight count tasks that run here."""
        scheduler = self.scheduler or self._leaving
        return scheduler is not None and scheduler.holds_units

    async def _prepare(self) -> None:
        """Create the topics of the pool once it is there, so that hosts can own it before the first task comes."""
        now = time.monotonic()
        if self._is_prepared or now < self._prepared_at + PREPARE_S:
            return
        self._prepared_at = now
        try:
            pool = (await self._catalog.get(self.name)).pool
        except errors.UnknownPool:
            if self._viewer is not None:  # it was deleted, and this host may have saved a snapshot since
                await self._snapshots.drop(self.name)
                self._viewer = None
            return
        await topics.ensure(self._app, pool)
        self._is_prepared = bool(pool.types)

    async def _take_over(self, epoch: int | None) -> None:
        try:
            self._stored = await self._catalog.get(self.name)
        except errors.UnknownPool:
            if not self._is_missing:
                log.info("pool %r was deleted; tasks of it wait until there is a pool of this name", self.name)
            self._is_missing = True
            return
        self._is_missing = False
        await self._records.give_up_running(self.name, us(self._app.clock.now()))
        self._asked = CancelReader(self._cancels, self.name)
        await self._asked.begin()
        self._beats = Beats(self._progress, self.name, self._app.clock)
        await self._beats.begin()
        scheduler = Scheduler(
            self._stored.pool,
            self._app.clock,
            lambda: self._app.epoch_of(self._root) == epoch and self._app.owns(self._root),
            self._is_here,
            self._on_ended,
            self._stored.version,
            saves=True,
            cancels=self._asked.remembered,
            beats=self._beats,
        )
        told = await self._snapshots.load(self.name)
        if told is not None and told.version == self._stored.version:
            scheduler.estimates.restore(told.state.costs)
        keeper = UsageKeeper(self._usage, self.name, scheduler.accounts, self._app.clock, scheduler.soon)
        await keeper.begin()
        keeper.start()
        self._keeper = keeper
        self.scheduler, self._epoch, self._adapted = scheduler, epoch, None
        self._viewer = Viewer(scheduler, self._app.host_name(), self._app.clock.now())
        self._fast = FastTenants(self._app, self._backlog.topics())
        self._attempts = AttemptRecords(self._ends)
        log.info("pool %r is scheduled on this host", self.name)

    async def _let_go(self) -> None:
        """Start nothing more; save the use once running tasks have reported theirs.

        Tasks that run longer than `drain_s` are cancelled, and all of them if the pool has gone already.
        """
        scheduler, self.scheduler = self.scheduler, None
        if scheduler is None:
            return
        scheduler.close()
        self._leaving, self._is_prepared = scheduler, False
        try:
            await self._ended_by(scheduler, self._app.settings.drain_s - LEAVE_S)
            scheduler.stop()
            await self._ended_by(scheduler, LEAVE_S)
            await self._replies.sent(LEAVE_S)
        finally:
            self._leaving = None
            await self._beats.end()
            keeper, self._keeper = self._keeper, None
            if keeper is not None:
                await keeper.end()

    async def _ended_by(self, scheduler: Scheduler, within_s: float) -> None:
        """Wait until nothing runs any more, or the time is over, or another host may have the pool."""
        for _ in range(math.ceil(within_s / LEAVE_STEP_S)):
            if not scheduler.running or not (self._is_here() or scheduler.stops):
                return
            await asyncio.sleep(LEAVE_STEP_S)

    def _is_here(self) -> bool:
        """Return whether no other host can have the pool: this host has it, or it was deleted."""
        host = self._app.host
        return self._is_missing or (host is not None and host.holds(self._root))

    async def _tick(self, scheduler: Scheduler) -> None:
        assert self._stored is not None
        version = await self._catalog.version(self.name)
        if not version:
            await self._deleted()
            return
        if self._keeper is not None and self._keeper.is_lost:
            log.warning("pool %r: what it has used is not saved here any more; it is taken over again", self.name)
            await self._let_go()
            return
        if version != self._stored.version:
            stored = await self._catalog.get(self.name)
            scheduler.follow(stored.pool, stored.version)
            self._stored = stored
        async for asked in self._asked.new():
            scheduler.cancel(asked)
        scheduler.sweep()
        self._attempts.note_long(scheduler.runs, self._app.clock.now())
        await self._beats.save()
        backlog = await self._backlog.look()
        assert self._viewer is not None
        await self._snapshots.save(self._viewer.look(backlog, self._app.clock.now()))
        wanted = (scheduler.version, dict(self._viewer.gains))
        if self._adapted != wanted:  # last, since a topic that cannot follow must not hold up the rest
            await topics.adapt_all(self._app, scheduler.pool, wanted[1])
            self._adapted = wanted
        if self._fast is not None and self._app.host is not None:
            await self._fast.look(scheduler.pool, wanted[1], self._app.host.ownership.topics)

    async def _deleted(self) -> None:
        """Let go of a pool that was deleted. Running tasks may end, and waiting ones stay in their topics."""
        log.info("pool %r was deleted; tasks of it wait until there is a pool of this name", self.name)
        self._is_missing = True
        await self._let_go()
        await self._snapshots.drop(self.name)  # one may have been saved since
