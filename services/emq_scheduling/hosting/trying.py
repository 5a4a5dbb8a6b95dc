"""The way of one task through its fallbacks on this host; see `emq_scheduling.fallbacks`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from emq.runtime import errors
from emq.runtime.clock import Clock
from emq_scheduling.fallbacks import Tries
from emq_scheduling.hosting.attempts import NO_ROOM_S, Barred, Dropped, NotNow, Performer, Stopped, describe
from emq_scheduling.hosting.scheduler import Scheduler
from emq_scheduling.hosting.shut import Passed
from emq_scheduling.model import TaskType
from emq_scheduling.outcomes import TryNext
from emq_scheduling.tasks import Task, standing


class Again(errors.Retry):
    """The task goes back to the store, which remembers how far it came among its fallbacks.

    Attributes:
        tries: as the message has them from now on.
    """

    def __init__(self, tries: Tries, reason: str, after_s: float = 0.0) -> None:
        super().__init__(reason, after_s=after_s)
        self.tries = tries


async def perform(
    task: Task,
    performer_of: Callable[[str], Performer | None],
    scheduler: Scheduler,
    clock: Clock,
    returned: int,
) -> object:
    """Run a task with fallbacks, and return the performer's result.

    Args:
        task: as the message has it.
        performer_of: returns the performer of a type, or None.
        returned: as for `Scheduler.perform`.

    Raises:
        Again: an attempt failed.
        Reject: it has used up its attempts at the last fallback.
        Exception: as `Scheduler.perform`.
    """
    tries = task.tries
    assert tries is not None
    if tries.former >= task.attempt:  # counted anew, since a message knows the reasons of its last deliveries only
        tries = msgspec.structs.replace(tries, former=task.attempt - 1)
        task = msgspec.structs.replace(task, tries=tries)
    place = tries.at
    while True:
        stand, is_open = _open(task, place, performer_of, scheduler)
        one = standing(task, stand, place if is_open else None)
        performer = performer_of(one.type)
        if performer is None:
            raise NotNow(f"no performer of this host does tasks of type {one.type!r}", NO_ROOM_S)
        patient_until = _patient_until(task, stand) if is_open and stand >= place else None
        try:
            return await scheduler.perform(one, performer, returned, patient_until)
        except Passed as exc:
            if exc.is_impatient and is_open:
                place = max(place, min(stand + 1, len(tries.entries) - 1))
        except Barred:
            if not _open(task, place, performer_of, scheduler)[1]:
                raise
        except (errors.GiveBack, Stopped, Dropped, NotNow, asyncio.CancelledError):
            raise
        except Exception as exc:
            cause = None if isinstance(exc, TryNext) else exc  # which is no error: the log needs no traceback of it
            raise _follows(exc, task, one, scheduler.pool.types.get(one.type), clock.now()) from cause


def _open(
    task: Task, place: int, performer_of: Callable[[str], Performer | None], scheduler: Scheduler
) -> tuple[int, bool]:
    """Return where a task stands now, and whether that is open: the first entry from `place` on that is not shut.

    If all of these are shut, the first one before that is open; and if there is none, the first of all where it may
    wait.
    """
    tries = task.tries
    assert tries is not None
    places = range(tries.at, len(tries.entries))
    able = [at for at in places if performer_of(tries.type(at)) is not None] or [tries.at]
    for at in sorted(able, key=lambda at: at < place):
        if not scheduler.shut.is_shut(task, tries, at):
            return at, True
    return min(able, key=lambda at: scheduler.shut.barred_s(task, tries, at)), False


def _patient_until(task: Task, place: int) -> float | None:
    """Return until when a task waits for room at an entry, in seconds since the epoch; None for ever.

    Its patience counts from when it came to the first one that it has not tried for good, for each of them in turn.
    """
    tries = task.tries
    assert tries is not None
    if tries.patience_s is None or place == len(tries.entries) - 1:
        return None
    since = tries.since or task.submitted_us / 1e6
    return since + (place - tries.at + 1) * tries.patience_s


def _follows(failure: Exception, task: Task, one: Task, kind: TaskType | None, now: float) -> Exception:
    """Return what follows for the message from a failed attempt.

    Args:
        one: the task as it stands.
        kind: its type there; None if that is gone.
    """
    assert task.tries is not None
    assert one.tries is not None
    tries = task.tries.to(one.tries.at, task.attempt - 1, now)
    attempts, reason = task.attempt - tries.former, describe(failure)
    is_used_up = kind is not None and attempts >= kind.max_attempts
    if isinstance(failure, errors.Reject):
        return failure
    if not tries.is_last and (isinstance(failure, TryNext) or is_used_up):
        tries = tries.to(tries.at + 1, task.attempt, now)
        return Again(tries, f"{reason}; it goes on to {tries.entries[tries.at]}")
    if is_used_up:
        return errors.Reject(reason)
    return Again(tries, reason, _wait_s(failure, kind, attempts))


def _wait_s(failure: Exception, kind: TaskType | None, attempts: int) -> float:
    """Return the seconds until the next attempt at the same entry, after this many there."""
    backoff_s = (0.0,) if kind is None else kind.backoff_s
    usual_s = backoff_s[max(1, min(attempts, len(backoff_s))) - 1]
    asked_s = getattr(failure, "after_s", None) if isinstance(failure, errors.Retry) else None
    if asked_s is None:
        return usual_s
    return max(usual_s, asked_s) if getattr(failure, "at_least", False) else float(asked_s)
