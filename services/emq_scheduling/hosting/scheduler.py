"""The scheduler of one pool on the host that owns it: tasks wait here for a resource, and run on it.

A task is a message in flight: EMQ's host delivers the first tasks of each topic of the pool, and each delivery waits in
`perform` until `emq_scheduling.choice.matching` starts it on a resource. Nothing binds a task to a resource before. So
a resource that fails leaves no tasks behind, and a host that stops gives all waiting ones back uncounted.

All topics of a pool have the pool's topic as their budget, so one host owns them all. That host starts tasks only while
it owns the first group of the pool's topic, and none in its first second, in which a former owner may have started
tasks.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable

from emq.runtime import errors
from emq.runtime.clock import Clock
from emq_scheduling.choice.keeping import Keeping
from emq_scheduling.choice.matching import Matching, Start
from emq_scheduling.choice.waiting import Waiting
from emq_scheduling.hosting.alarm import Alarm
from emq_scheduling.hosting.attempts import (
    NO_ROOM_S,
    Barred,
    Dropped,
    Ended,
    Lost,
    NotNow,
    Performer,
    Placement,
    Run,
    Running,
    Stopped,
    most_attempts,
    outcome_of,
    told_by,
)
from emq_scheduling.hosting.beats import Beats
from emq_scheduling.hosting.estimates import Estimates
from emq_scheduling.hosting.healths import Healths
from emq_scheduling.hosting.measured import Measured
from emq_scheduling.hosting.runs import Runs
from emq_scheduling.hosting.shut import LEAST_S, Passed, Shut
from emq_scheduling.limits import calendars
from emq_scheduling.limits.accounts import Accounts
from emq_scheduling.model import Pool
from emq_scheduling.outcomes import Overloaded, ResourceFailed, TryNext
from emq_scheduling.pools.ceilings import Ceilings
from emq_scheduling.records.cancels import Asked, Remembered, is_concerned
from emq_scheduling.tasks import Task

log = logging.getLogger(__name__)

AT_ONCE = 32
"""Most tasks started before the event loop does other work."""

LOOK_S = 0.05
"""Seconds between looks whether the host still owns the pool, while tasks wait."""

MOVES = 20
"""Resources that send a task away before it is tried again later; it is also, when one has sent it away twice."""

AGAIN_S = 0.1
"""Pause of a topic whose tasks were given back."""

NO_TYPE_S = 5.0
"""The same for tasks of a type that the pool does not have now, in seconds."""

MOVED_S = 1.0
MOST_MOVED_S = 60.0
"""Least and most seconds after which a task comes back that no resource took; twice as long each time."""


class Scheduler:
    """The waiting and running tasks of one pool on this host.

    Args:
        owns: returns whether this host owns the pool now, and may start tasks.
        holds: returns whether no other host can have the pool now.
        on_ended: called with each attempt that ran; it may wait to push back.
        version: of the pool.
        saves: True if a `UsageKeeper` saves what `accounts` count.
        cancels: those that are remembered.
        beats: keeps what running tasks tell of themselves; None for nobody.
    """

    def __init__(
        self,
        pool: Pool,
        clock: Clock,
        owns: Callable[[], bool],
        holds: Callable[[], bool],
        on_ended: Callable[[Ended], Awaitable[None]],
        version: int = 0,
        *,
        saves: bool = False,
        cancels: Remembered | None = None,
        beats: Beats | None = None,
    ) -> None:
        now = clock.now()
        self.pool = pool
        self.version = version
        self.accounts = Accounts(pool, now, saves=saves)
        self.accounts.begin(now)
        self.keeping = Keeping(pool, self.accounts, now)
        self.matching = Matching(pool, self.keeping)
        self.measured = Measured(now)
        self.estimates = Estimates(pool)
        self.stops = False  # what runs is cancelled
        self.healths = Healths(pool, self.accounts, self.matching, self.soon)
        self.running: Counter[str] = Counter()
        self._cancels = cancels or Remembered()
        self._beats = beats
        self._waiting: dict[Waiting, None] = {}  # two tasks may have the same id
        self.runs = Runs()
        self._ceilings = Ceilings(pool)
        self.shut = Shut(pool, self.matching, self.accounts, self.running, clock)
        self._clock = clock
        self._owns = owns
        self._holds = holds
        self._held_at = now
        self._on_ended = on_ended
        self._is_due = False
        self._alarm = Alarm(self._match)
        self._passing: list[Waiting] = []
        self._look: asyncio.TimerHandle | None = None
        self._is_closed = False

    # ------------------------------------------------------------------------------------------------- what hosts call

    async def perform(
        self, task: Task, performer: Performer, returned: int = 0, patient_until: float | None = None
    ) -> object:
        """Wait for a resource, run the task on it, and return the performer's result.

        Args:
            returned: how often the task has come back without an attempt that counts.
            patient_until: when it goes on from a fallback without room, in seconds since the epoch; None for never.

        Raises:
            GiveBack: the host lets go of the pool; another one will deliver the task.
            Dropped: the task was cancelled or has expired, and did not start.
            NotNow: no resource takes it for a while.
            Passed: it goes on to another fallback for now, and has not run here.
            TryNext: it goes on to the next fallback for good.
            Exception: of the performer, when the attempt failed.
        """
        tried: set[str] = set()
        may_go_on = task.tries is not None and not task.tries.is_last
        while len(tried) < MOVES:
            placement = await self._placed(task, patient_until)
            try:
                return await self._run(task, placement, performer)
            except (Overloaded, ResourceFailed) as exc:
                log.debug("task %s leaves resource %s: %s", task.id, placement.resource, exc)
                reason = exc.reason
            is_again = placement.resource in tried
            tried.add(placement.resource)
            if may_go_on and (is_again or len(tried) == MOVES or not self.shut.has_more(task, tried)):
                raise TryNext(reason)
            if is_again:
                break
        names = ", ".join(sorted(tried)[:4])
        raise NotNow(f"overloaded or out of order: {names}", min(MOST_MOVED_S, MOVED_S * 2.0 ** min(returned, 10)))

    def follow(self, pool: Pool, version: int) -> None:
        """Take over a changed pool; waiting and running tasks go on."""
        now = self._clock.now()
        self.pool, self.version = pool, version
        self.accounts.follow(pool, now)
        self.keeping.follow(pool, now)
        self.matching.follow(pool)
        self.estimates.follow(pool)
        self._ceilings = Ceilings(pool)
        self.shut.follow(pool)
        self.healths.follow(pool, now)
        self.soon()

    def cancel(self, asked: Asked) -> None:
        """Take tasks out of the window to which these cancels refer. Those that run go on."""
        for waiting in self._waiting:
            if is_concerned(asked.get(waiting.task.id), waiting.task.submitted_us):
                self._drop(waiting, Dropped("cancelled", "cancelled"))
                self.soon()

    def sweep(self) -> None:
        """Drop waiting tasks that have expired, and let resources follow the time: call this about once a second."""
        now = self._clock.now()
        for waiting in self._waiting:
            kind = self.pool.types.get(waiting.task.type)
            tries = waiting.task.tries
            if kind is None or kind.ttl_s is not None or kind.hours or waiting.costs is not None or tries is not None:
                try:
                    self._check(waiting.task, now)
                    if tries is not None and self.shut.passes(waiting.task):
                        raise Passed
                except Exception as exc:  # also one that nobody expects: the sweep goes on with the others
                    self._drop(waiting, exc)
        self.healths.look(now)
        self.estimates.apply(self.matching.costing)
        self.accounts.sweep(now)
        self.matching.look_again(now)
        self.soon()

    def waiting(self, task_type: str) -> int:
        """Return how many tasks of a type wait here for a resource."""
        return self.matching.window.sums.count(task_type)

    def close(self) -> None:
        """Give all waiting tasks back, and start nothing more."""
        self._is_closed = True
        self._alarm.cancel()
        self._give_back()

    def stop(self) -> None:
        """Cancel running tasks, so that another host runs them again; after `close`."""
        self.stops = True
        self.runs.cancel()

    @property
    def holds_units(self) -> bool:
        """Whether tasks run here that a limit in flight counts."""
        return bool(self.running) and self.pool.has_in_flight

    # ------------------------------------------------------------------------------------------------------- one task

    async def _placed(self, task: Task, patient_until: float | None) -> Placement:
        """Wait in the window until the task starts.

        Raises:
            GiveBack, Dropped, Passed: it does not start here.
        """
        now = self._clock.now()
        self._check(task, now)
        future: asyncio.Future[Placement] = asyncio.get_running_loop().create_future()
        waiting = Waiting(task, 0, future)
        self._waiting[waiting] = None
        timer = None
        if patient_until is not None:
            left_s = max(LEAST_S, patient_until - now)
            timer = asyncio.get_running_loop().call_later(left_s, self._impatient, waiting)
        try:
            self.matching.add(waiting, now)
            self.soon()
            self._look_again()
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._undo(future.result())  # it was cancelled in the moment in which it started
            raise
        finally:
            if timer is not None:
                timer.cancel()
            del self._waiting[waiting]
            self.matching.remove(waiting)

    def _check(self, task: Task, now: float) -> None:
        """Raise unless the task may wait here."""
        if self._is_closed or not self._owns():
            raise errors.GiveBack("this host does not own the pool", pause_s=AGAIN_S)
        if self._cancels.concerns(task.id, task.submitted_us):
            raise Dropped("cancelled", "cancelled")
        kind = self.pool.types.get(task.type)
        if kind is None:
            if task.tries is not None and any(name in self.pool.types for name in task.tries.types):
                raise Barred(
                    f"the pool has no task type {task.type!r} now", NO_ROOM_S
                )  # no pause for others of its topic
            raise errors.GiveBack(f"pool {self.pool.name!r} has no task type {task.type!r} now", pause_s=NO_TYPE_S)
        own = kind if task.tries is None else self.pool.types.get(task.own_type, kind)
        if own.ttl_s is not None and now > task.submitted_us / 1e6 + own.ttl_s:
            raise Dropped("expired", f"expired: it waited longer than its type's ttl_s {own.ttl_s:g}")
        if kind.hours and (at := calendars.allowed_at(kind.hours, task.zone or self.pool.zone, now)) > now:
            raise Barred("the hours of its type are over", at - now)
        if task.costs is not None and self._ceilings.above(task.type, task.costs, task.tenant, task.keys):
            raise Barred("its costs are above what any able resource allows", NO_ROOM_S)

    def _undo(self, placement: Placement) -> None:
        self._left(placement.resource)
        placement.charge.undo(self._clock.now())
        self.matching.freed(placement.charge, self._clock.now(), is_refund=True)

    async def _run(self, task: Task, placement: Placement, performer: Performer) -> object:
        resource = self.pool.resources.get(placement.resource)
        kind = self.pool.types.get(task.type)
        attributes = {} if resource is None else self.pool.attributes(placement.resource)
        run = Run(task, placement, attributes, self._clock, self._beats)
        timeout = asyncio.timeout(None if kind is None else kind.timeout_s)
        running = self.runs[placement.charge] = Running(task, placement, timeout)
        if kind is not None and kind.beats_within_s is not None:
            self.runs.watch(placement.charge, run, kind.beats_within_s)
        result: object = None
        failure: BaseException | None = None
        try:
            async with timeout:
                result = await performer(task, run)
        except BaseException as exc:
            is_stopped = running.is_cancelled and isinstance(exc, TimeoutError)
            failure = Stopped("the host lets go of the pool", pause_s=AGAIN_S) if is_stopped else exc
            if running.is_silent and isinstance(exc, TimeoutError) and kind is not None:
                failure = errors.Retry(f"silent for over {kind.beats_within_s:g} s, its type's beats_within_s")
            moves = resource is None or resource.adapts or not (task.tries is None or task.tries.is_last)
            failure = told_by(failure, may_be_stopped=not self._owns(), moves=moves)
        now = at = self._clock.now()
        if not self._holds() and not isinstance(failure, asyncio.CancelledError):
            failure, result = Lost("the host has lost the pool", pause_s=AGAIN_S), None
            at = max(placement.at, self._held_at)
        self._left(placement.resource)
        del self.runs[placement.charge]
        run.is_over = True
        actual = dict(run.actual)  # further reports of the performer come too late
        placement.charge.end(now, actual)
        outcome, error = outcome_of(failure, task.attempt, most_attempts(task, kind))
        self.measured.ended(task, placement.resource, now - placement.at, outcome)
        if actual and outcome == "done":
            self.estimates.ended(task.type, placement.resource, task.costs, actual)
        self.healths.note(task.type, placement, failure, now)
        if failure is not None:
            self.shut.forget()
        self.matching.freed(placement.charge, now, is_refund=bool(actual))
        self.soon()
        await self._on_ended(Ended(task, placement, at, outcome, error, actual, result))
        if failure is not None:
            raise failure
        return result

    def _left(self, resource: str) -> None:
        self.running[resource] -= 1
        if not self.running[resource]:
            del self.running[resource]

    # --------------------------------------------------------------------------------------------------- the matching

    def soon(self) -> None:
        """Look for tasks that may start, once other events of now are over."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._match)

    def _match(self) -> None:
        self._is_due = False
        if self._is_closed or not self.matching.window.count:
            return
        if not self._owns():
            self._give_back()
            return
        now = self._clock.now()
        starts = self.matching.run(now, AT_ONCE)
        for start in starts:
            self._started(start, now)
        if len(starts) >= AT_ONCE:
            self.soon()
            return
        self._alarm.set(self.matching.next_at(now), now)
        for waiting in self._passing:
            self._drop(waiting, Passed(is_impatient=True))
        self._passing.clear()

    def _impatient(self, waiting: Waiting) -> None:
        """Let a task go on to its next fallback, but not before a look that is due: it may have room here."""
        if self._is_due:
            self._passing.append(waiting)
        else:
            self._drop(waiting, Passed(is_impatient=True))

    def _started(self, start: Start, now: float) -> None:
        task = start.waiting.task
        future: asyncio.Future[Placement] = start.waiting.holder
        placement = Placement(start.resource, start.charge, start.costs, now, self.version)
        self.running[start.resource] += 1
        try:
            if future.done():  # cancelled, and not taken out of the window yet
                raise Dropped("cancelled", "cancelled")
            self._check(task, now)
        except Exception as exc:  # also one that nobody expects, or the charges of this start and the next ones stay
            self._undo(placement)
            if not future.done():
                future.set_exception(exc)
            return
        self.measured.started(task, start.resource, now)
        self.estimates.started(task.type, task.costs, start.costs)
        self._look_again()
        future.set_result(placement)

    def _look_again(self) -> None:
        """Look from time to time whether the host still owns the pool, as long as tasks wait or run."""
        if self._look is None:
            self._look = asyncio.get_running_loop().call_later(LOOK_S, self._looked)

    def _looked(self) -> None:
        self._look = None
        self.runs.cancel_silent()
        if not self._owns():
            self._give_back()
        if not self._holds():
            self.runs.cancel()  # another host may run these tasks now
        else:
            self._held_at = self._clock.now()
        if self.matching.window.count or self.running:
            self._look_again()

    def _give_back(self) -> None:
        for waiting in self._waiting:
            self._drop(waiting, errors.GiveBack("the host lets go of the pool", pause_s=AGAIN_S))

    def _drop(self, waiting: Waiting, why: Exception) -> None:
        self.matching.remove(waiting)
        if not waiting.holder.done():
            waiting.holder.set_exception(why)
