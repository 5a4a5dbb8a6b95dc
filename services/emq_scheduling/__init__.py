"""Resource scheduling: tasks of many types on resources with limits of their own, the urgent first.

A user of the public API of `emq`. `docs/scheduling.md` is its page.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from emq_scheduling.fallbacks import Tries
    from emq_scheduling.hosting.attempts import Run
    from emq_scheduling.model import Calendar, Hours, KeyLimit, Limit, Pool, Resource, TaskType, Tenant
    from emq_scheduling.outcomes import Overloaded, ResourceFailed, TryNext
    from emq_scheduling.records.records import TaskStatus
    from emq_scheduling.scheduling import Scheduling
    from emq_scheduling.submission import Receipt, Submission
    from emq_scheduling.tasks import Task

__all__ = [
    "Calendar",
    "Hours",
    "KeyLimit",
    "Limit",
    "Overloaded",
    "Pool",
    "Receipt",
    "Resource",
    "ResourceFailed",
    "Run",
    "Scheduling",
    "Submission",
    "Task",
    "TaskStatus",
    "TaskType",
    "Tenant",
    "Tries",
    "TryNext",
]

_HOMES = {
    "fallbacks": ("Tries",),
    "hosting.attempts": ("Run",),
    "model": ("Calendar", "Hours", "KeyLimit", "Limit", "Pool", "Resource", "TaskType", "Tenant"),
    "outcomes": ("Overloaded", "ResourceFailed", "TryNext"),
    "records.records": ("TaskStatus",),
    "scheduling": ("Scheduling",),
    "submission": ("Receipt", "Submission"),
    "tasks": ("Task",),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: the command line starts without loading SQLAlchemy."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
