"""One attempt of a task: its resource, the facts for and from its performer, its end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from emq.runtime import errors
from emq.runtime.clock import Clock
from emq.runtime.inputs import shown
from emq_scheduling.hosting import beats
from emq_scheduling.hosting.beats import Beats
from emq_scheduling.limits.accounts import Charge
from emq_scheduling.model import Costs, Period, TaskType
from emq_scheduling.outcomes import Overloaded, ResourceFailed, TryNext
from emq_scheduling.records.ends import LOST, End, us
from emq_scheduling.tasks import NOT_NOW, Task

NO_ROOM_S = 60.0
"""Seconds after which a task comes back that costs more than every limit now, or whose fallbacks nobody does."""


class NotNow(errors.Retry):
    """The task goes back to the store for a while, without an attempt."""

    def __init__(self, reason: str, after_s: float) -> None:
        super().__init__(NOT_NOW + reason, after_s=after_s)
        errors.tell_attempt(self, 0)


class Barred(NotNow):
    """Nothing like the task may wait now where it stands: its type is gone, or its hours are over, or it costs more
    than the limits ever allow. If it has another fallback that is open, it goes on there instead."""


class Stopped(errors.GiveBack):
    """The host cancelled the task, since it lets go of the pool; the next owner runs it again, uncounted."""


class Lost(Stopped):
    """The host could not keep the pool while the task ran. Another one may have done the task, so its end is unknown
    here, whatever the performer returned."""


class Dropped(Exception):
    """A task ends without having started: its `outcome` is "cancelled", "expired" or "dead"."""

    def __init__(self, outcome: str, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome


class Placement(NamedTuple):
    """The start of a task: resource, time in seconds since the epoch, and charges by limit.

    Attributes:
        version: of the pool by which it was charged.
    """

    resource: str
    charge: Charge
    costs: Costs
    at: float
    version: int


@dataclasses.dataclass(slots=True)
class Running:
    """A task that runs.

    Attributes:
        timeout: bounds the call of the performer.
        is_cancelled: this host has ended the call before its time.
        is_silent: it has, since the performer did not beat.
    """

    task: Task
    placement: Placement
    timeout: asyncio.Timeout
    is_cancelled: bool = False
    is_silent: bool = False


def record_of(task: Task, outcome: str, version: int, *, placement: Placement | None = None, **rest: Any) -> End:
    """Return the record of an attempt; without a placement, of a task that never started.

    Args:
        rest: other fields of the record.
    """
    return End(
        pool=task.pool,
        task=task.id,
        type=task.own_type,
        as_type="" if task.tries is None or task.type == task.own_type else task.type,
        tenant=task.tenant,
        key=task.key or "",
        submitted_us=task.submitted_us,
        started_us=0 if placement is None else us(placement.at),
        resource="" if placement is None else placement.resource,
        version=version,
        costs={} if placement is None else placement.costs,
        outcome=outcome,
        attempt=0 if placement is None else task.attempt,
        keys=task.keys,
        **rest,
    )


class Run:
    """The facts of an attempt for its performer, and the performer's reports.

    Attributes:
        resource: name of the resource on which the task runs.
        attributes: those of the resource and its parents (`Resource`).
        charged: units charged at the start, by limit.
        at: when it started, in seconds since the epoch; limits count it in this second.
        actual: units that the attempt really used, as reported by `used`.
        beats: how often this attempt has beaten.
        is_over: the attempt has ended, so its progress is not kept any more.
    """

    __slots__ = (
        *("_beats", "_charge", "_clock", "_task", "actual", "at", "attributes", "beats", "charged", "is_over"),
        "resource",
    )

    def __init__(
        self, task: Task, placement: Placement, attributes: dict[str, str], clock: Clock, beats: Beats | None
    ) -> None:
        self._task = task
        self._charge = placement.charge
        self._clock = clock
        self._beats = beats
        self.beats = 0
        self.is_over = False
        self.resource = placement.resource
        self.at = placement.at
        self.attributes = attributes
        self.charged = placement.costs
        self.actual: Costs = {}

    def used(self, **units: float) -> None:
        """Report the units that the attempt really used, in all, by limit name: `run.used(tokens=812)`.

        The difference to the charge is settled when the attempt ends, also if it fails.

        Raises:
            ValueError: a number is negative or not finite.
        """
        for name, number in units.items():
            if not _is_amount(number):
                raise ValueError(f"used {name}={shown(number)}: give a finite number of units, 0 or more")
        self.actual.update(units)

    def beat(self, progress: object = None) -> None:
        """Tell that the attempt goes on, and perhaps how far it came: `run.beat({"page": 12})`.

        Costs microseconds: the latest progress of a task is saved once a second. After a crash or a failed attempt, the
        next attempt finds it as `run.progress`. A task whose type has `beats_within_s` must beat more often than that.

        Args:
            progress: a value that JSON can hold in 4 KiB; None to leave it as it is.

        Raises:
            ValueError: the progress is too large, or JSON cannot hold it.
        """
        self.beats += 1
        body = None if progress is None else beats.encoded(progress)
        if body is not None and self._beats is not None:
            with self._beats.lock:
                if not self.is_over:
                    self._beats.tell(self._task, us(self.at), body)

    @property
    def progress(self) -> Any:
        """How far the task came, as the latest `beat` told it, of this attempt or a former one; None for nothing."""
        return None if self._beats is None else self._beats.progress(self._task)

    def left(
        self, limit: str, units: float, *, reset_s: float, per: Period | None = None, of: str | None = None
    ) -> None:
        """Report what the provider says is left of a limit: `run.left("requests", 12, reset_s=30)`.

        From now on, no more than that starts there until the reset, even if the limit has more room. If it has less, it
        stays as it is. The latest word counts; that of a task which started before it only lowers it, since it may be
        older.

        Args:
            limit: its name.
            units: that the provider would still take, such as `x-ratelimit-remaining-requests`.
            reset_s: seconds until the provider counts again from the beginning; at most the limit's period counts.
            per: the period of the limit, if several have the name.
            of: the resource whose limit it is, or one of its parents; the nearest without it.

        Raises:
            ValueError: a number is negative or not finite, or no limit or several are meant.
        """
        for name, number in (("units", units), ("reset_s", reset_s)):
            if not _is_amount(number):
                raise ValueError(f"left of {shown(limit)}: {name} {shown(number)} must be a finite number, 0 or more")
        self._charge.tell(limit, units, reset_s, self._clock.now(), per, of)


def _is_amount(given: object) -> bool:
    """Return whether a performer gave a finite number, 0 or more, rather than a text or an integer beyond a float."""
    try:
        return math.isfinite(given) and given >= 0  # type: ignore[arg-type, operator]
    except (TypeError, ValueError, OverflowError):
        return False


Performer = Callable[[Task, Run], Awaitable[object]]


class Ended(NamedTuple):
    """An attempt that ran on a resource.

    Attributes:
        at: when it ended, in seconds since the epoch.
        outcome: "done"; "failed" (it is tried again), "dead" (it is not), "moved" (it goes to another resource at
            once), "stopped" (the host stopped, and another one tries it again), "lost" (see `Lost`).
        error: of an attempt that is not done.
        actual: units that it used, as reported.
        result: the performer's return value.
    """

    task: Task
    placement: Placement
    at: float
    outcome: str
    error: str | None
    actual: Costs
    result: object


def outcome_of(failure: BaseException | None, attempt: int, max_attempts: int | None) -> tuple[str, str | None]:
    """Return the outcome and the error of an attempt; see `Ended`."""
    if failure is None:
        return "done", None
    if isinstance(failure, Lost):
        return LOST, "the host lost the pool while it ran"
    if isinstance(failure, asyncio.CancelledError | Stopped):
        return "stopped", "the host stopped"
    if isinstance(failure, Overloaded | ResourceFailed):
        return "moved", describe(failure)
    is_last = isinstance(failure, errors.Reject) or (max_attempts is not None and attempt >= max_attempts)
    return "dead" if is_last else "failed", describe(failure)


def most_attempts(task: Task, kind: TaskType | None) -> int | None:
    """Return the number of the attempt after which a task ends where it stands.

    None if it goes on instead, or if nobody knows its type.
    """
    if kind is None or task.tries is None:
        return None if kind is None else kind.max_attempts
    return task.tries.most_attempts(kind.max_attempts)


def describe(failure: BaseException | None) -> str:
    """Return one line that says what failed."""
    if isinstance(failure, TimeoutError) and not str(failure):
        return "it took longer than its type's timeout_s"
    if isinstance(failure, errors.Retry | errors.Reject | Overloaded | ResourceFailed | TryNext):
        return str(failure.reason)
    try:
        return f"{type(failure).__name__}: {failure}"[:500]
    except Exception:  # the performer's own class, which fails once more
        return f"{type(failure).__name__}, which cannot tell its text"


def told_by(failure: BaseException, *, may_be_stopped: bool, moves: bool) -> BaseException:
    """Return a performer's error; as a failed attempt, unless the host stops it or Python is interrupted.

    Args:
        may_be_stopped: the host may have cancelled the performer; otherwise this has cancelled itself or its task.
        moves: a complaint moves the task elsewhere, since the resource gets less then, or the task has a fallback. If
            not, nothing keeps the task from it, so the attempt counts.
    """
    if isinstance(failure, Overloaded | ResourceFailed) and not moves:
        return errors.Retry(failure.reason, after_s=getattr(failure, "after_s", None), at_least=True)
    if isinstance(failure, Exception | KeyboardInterrupt):
        return failure
    task = asyncio.current_task()
    while isinstance(failure, asyncio.CancelledError) and task is not None and task.cancelling():
        if may_be_stopped:
            return failure
        task.uncancel()
    failed = RuntimeError(f"the performer raised {describe(failure)}")
    failed.__cause__ = failure
    return failed


def encoded(result: object) -> bytes:
    """Return the result of a performer for the records."""
    if result is None:
        return b""
    if isinstance(result, bytes):
        return result
    with contextlib.suppress(Exception):
        return msgspec.json.encode(result)
    with contextlib.suppress(Exception):  # of the performer's own class
        return repr(result).encode("utf-8", "replace")
    return type(result).__name__.encode()
