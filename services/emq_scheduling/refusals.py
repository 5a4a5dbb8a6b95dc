"""Why a pool does not take a task, as the errors of `submit`."""

from __future__ import annotations

import math

from emq.runtime import durations, errors
from emq.runtime.inputs import shown
from emq_scheduling.model import Pool
from emq_scheduling.pools.ceilings import Over


def too_late(pool: str, task_type: str, wait_s: float, duration_s: float, allowed_s: float) -> errors.TaskRefused:
    """The task would miss its deadline."""
    starts = f"start in about {durations.brief(wait_s)} and take {durations.brief(duration_s)}"
    if math.isinf(wait_s):
        starts = "not start within a day, since what takes it is closed, has no quota left, or has more urgent tasks"
    return errors.TaskRefused(
        f"task type {task_type!r} of pool {pool!r}: a task submitted now would {starts}, and its deadline "
        f"is in {durations.brief(allowed_s)}; submit fewer, add a resource, or give it more time",
        code="deadline",
        wait_s=wait_s,
    )


def too_short_lived(pool: str, task_type: str, opens_s: float, ttl_s: float) -> errors.TaskRefused:
    """The task would expire before the hours of its type begin."""
    return errors.TaskRefused(
        f"task type {task_type!r} of pool {pool!r}: its hours begin in {durations.brief(opens_s)}, and a task "
        f"submitted now expires in {durations.brief(ttl_s)}, by the type's ttl_s; submit it later",
        code="deadline",
        wait_s=opens_s,
    )


def unknown_type(pool: Pool, task_type: str) -> errors.TaskRefused:
    """The pool has no such type."""
    known = ", ".join(list(pool.types)[:8]) or "none"
    text = f"pool {pool.name!r} has no task type {shown(task_type)}; it has {known}"
    return errors.TaskRefused(text, code="unknown_type")


def above_limit(pool: str, task_type: str, over: Over) -> errors.TaskRefused:
    """The task costs more than a limit ever allows."""
    whose = "any able resource allows" if over.limit is None else f"limit {over.limit!r} allows its key"
    return errors.TaskRefused(
        f"task type {task_type!r} of pool {pool!r}: costs {over.unit}={over.units:g} are above {over.most:g}, the "
        f"most that {whose}; split the task, or raise the limit",
        code="cost_above_limit",
    )


def lacks_key(pool: str, limit: str, name: str) -> errors.InvalidMessage:
    """The task lacks a key by which a limit counts."""
    return errors.InvalidMessage(
        f"limit {limit!r} of pool {pool!r} counts by {name!r}, which the task lacks; submit it with keys such as "
        f"{name}: a7"
    )
