"""Which fallbacks are shut: nothing there starts now, however long a task waits."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from emq.runtime.clock import Clock
from emq_scheduling.choice.matching import Matching
from emq_scheduling.fallbacks import Tries, split
from emq_scheduling.limits import calendars
from emq_scheduling.limits.account import PROBE_FACTOR
from emq_scheduling.limits.accounts import Accounts
from emq_scheduling.model import Pool
from emq_scheduling.pools.ceilings import Ceilings
from emq_scheduling.tasks import Task

LOOK_S = 0.1
"""Seconds for which it is remembered that all resources of a type are shut, or not: there may be thousands, and many
tasks may ask."""

LEAST_S = 0.1
"""Least seconds for which a task waits at a fallback, though its patience there is over: it may have room at once."""


class Passed(Exception):
    """A task leaves the fallback where it stands, for now, and looks for another one.

    Attributes:
        is_impatient: it has waited there for long enough; else the fallback is shut, and another one is not.
    """

    def __init__(self, *, is_impatient: bool = False) -> None:
        super().__init__("it goes on to another fallback")
        self.is_impatient = is_impatient


class Shut:
    """Tells which fallbacks are shut.

    One is shut while its type or its resource is gone or the hours of its type are over; if the task costs more than
    its limits ever allow; and while each of its resources is paused, rests, is out of order, or runs the single task
    that probes it.

    Args:
        running: tasks by resource.
    """

    def __init__(
        self, pool: Pool, matching: Matching, accounts: Accounts, running: Mapping[str, int], clock: Clock
    ) -> None:
        self._matching = matching
        self._accounts = accounts
        self._running = running
        self._clock = clock
        self.follow(pool)

    def follow(self, pool: Pool) -> None:
        """Take over a changed pool."""
        self._pool = pool
        self._ceilings = Ceilings(pool)
        self._known: dict[str, bool] = {}
        self._looked_at = -math.inf

    def forget(self) -> None:
        """Look at the resources again: an attempt has failed, so one may have closed."""
        self._known.clear()

    def passes(self, task: Task) -> bool:
        """Return whether a task is to leave its fallback, to look for the one where it stands now."""
        tries = task.tries
        assert tries is not None
        if self.is_shut(task, tries, tries.at):
            first = tries.least
        elif tries.reached is None:
            return True
        elif tries.at < tries.reached:
            first = tries.reached
        else:
            return False
        return any(not self.is_shut(task, tries, place) for place in range(first, len(tries.entries)))

    def is_shut(self, task: Task, tries: Tries, place: int) -> bool:
        """Return whether a fallback of a task is shut now."""
        now = self._clock.now()
        if not self._looked_at <= now < self._looked_at + LOOK_S:
            self._known.clear()
            self._looked_at = now
        entry = tries.entries[place]
        kind, only = split(entry)
        found = None if only else self._known.get(kind)
        if found is None:
            found = not self._has_open(entry, (), now)
            if not only:
                self._known[kind] = found
        return found or self.barred_s(task, tries, place) > 0

    def barred_s(self, task: Task, tries: Tries, place: int) -> float:
        """Return the seconds until a task may wait at a fallback: 0 for now, infinity if nobody knows."""
        kind, _ = split(tries.entries[place])
        if kind not in self._pool.types:
            return math.inf
        if task.costs is not None and self._ceilings.above(kind, task.costs, task.tenant, task.keys) is not None:
            return math.inf
        hours, now = self._pool.types[kind].hours, self._clock.now()
        return calendars.allowed_at(hours, task.zone or self._pool.zone, now) - now if hours else 0.0

    def has_more(self, task: Task, tried: Collection[str]) -> bool:
        """Return whether the fallback where a task stands has an open resource besides those that it has tried."""
        assert task.tries is not None
        return self._has_open(task.tries.entries[task.tries.at], tried, self._clock.now())

    def _has_open(self, entry: str, tried: Collection[str], now: float) -> bool:
        kind, only = split(entry)
        if only:  # a look through all that take the type, maybe thousands, is too slow for each of many tasks
            resource = self._pool.resources.get(only)
            return resource is not None and kind in resource.takes and only not in tried and self._is_open(only, now)
        return any(name not in tried and self._is_open(name, now) for name in self._matching.able(kind))

    def _is_open(self, resource: str, now: float) -> bool:
        if self._matching.lineups.closed_until(resource) > now:
            return False
        return not (self._running.get(resource) and self._accounts.factor(resource) <= PROBE_FACTOR)
