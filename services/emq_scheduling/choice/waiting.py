"""A task that waits in the window."""

from __future__ import annotations

from typing import Any, Protocol

from emq_scheduling.limits.keyed import NO_IDS, Id
from emq_scheduling.model import Costs
from emq_scheduling.tasks import Task


class Aside(Protocol):
    """A `Bay` of `emq_scheduling.choice.bays`."""

    def drop(self, waiting: Waiting) -> None: ...


class Waiting:
    """A task in the window.

    Attributes:
        task: the task.
        costs: its own costs, which go before those of its type; None for none.
        level: the priority at which it competes now.
        keeps_to: the resource to which it keeps: for a while because of its key, or because a fallback names it; None
            for any.
        size: of its own costs, see `size_of`; None without such.
        deadline: seconds since the epoch; None for none.
        is_near: the deadline is near.
        near_level: the priority at which it competes once its deadline is near.
        is_gone: it has been started, or taken out of the window.
        order: tasks of a tenant and line go in this order, microseconds since the epoch.
        ticket: of its entry in the line where it waits now; other entries for it are stale.
        ids: the accounts of limits by key that count it.
        bay: where it waits for room under a limit by key; None while it waits for a resource.
        units: those that it lacked there last.
        promised: when it was first expected to have room in flight, by resource on which it was next.
        holder: an object of the caller's, such as a future.
    """

    __slots__ = (
        *("bay", "costs", "deadline", "holder", "ids", "is_gone", "is_near", "keeps_to", "level", "near_level"),
        *("order", "promised", "size", "task", "ticket", "units"),
    )

    def __init__(self, task: Task, level: int, holder: Any = None) -> None:
        self.task = task
        self.costs: Costs | None = task.costs
        self.level = self.near_level = level
        self.keeps_to: str | None = None
        self.size: int | None = None
        self.deadline = task.deadline
        self.is_near = False
        self.is_gone = False
        self.order = task.submitted_us
        self.ticket = -1
        self.holder = holder
        self.ids: tuple[Id, ...] = NO_IDS
        self.bay: Aside | None = None
        self.units = 0.0
        self.promised: dict[str, float] = {}
