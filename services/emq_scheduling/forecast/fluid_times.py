"""The times at which amounts and hours change, for a simulation that goes from change to change."""

from __future__ import annotations

import math

from emq_scheduling.limits.calendars import Timetable, day_at, day_start
from emq_scheduling.model import Limit, Pool

MARGIN_S = 1e-3
"""Times within this of a change count as after the change: sums of steps are not exact."""


class Changes:
    """The calendars, days and hours of a pool. Times are seconds since the epoch.

    Assumes the pool's zone for tasks of a type with hours.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._tables = {name: Timetable(each.zone, each.hours) for name, each in pool.calendars.items() if each.hours}
        self._hours = {name: Timetable(pool.zone, kind.hours) for name, kind in pool.types.items() if kind.hours}
        self._day_zones = {
            self._zone(name, limit)
            for name, resource in pool.resources.items()
            for limit in resource.limits
            if limit.per == "day" and limit.counts == "calendar"
        }

    def amount(self, resource: str, limit: Limit, now: float) -> float:
        """Return the amount of a limit of the resource."""
        table = self._tables.get(self._pool.resources[resource].calendar or "")
        for hours in table.active(now + MARGIN_S) if table is not None else ():
            if limit.name in hours.amounts:
                return hours.amounts[limit.name]
        return limit.amount

    def allows(self, kind: str, now: float) -> bool:
        """Return whether tasks of the type may start."""
        hours = self._hours.get(kind)
        return hours is None or bool(hours.active(now + MARGIN_S))

    def is_midnight(self, resource: str, limit: Limit, now: float) -> bool:
        """Return whether a day of a limit of the resource begins."""
        zone, now = self._zone(resource, limit), now + MARGIN_S
        return now - day_start(zone, day_at(zone, now)) < 2 * MARGIN_S

    def next_at(self, now: float) -> float:
        """Return the first time after now at which something changes; infinity for never."""
        now += MARGIN_S
        times = [day_start(zone, day_at(zone, now) + 1) for zone in self._day_zones]
        times += [table.changes_at(now) for table in (*self._tables.values(), *self._hours.values())]
        return min(times, default=math.inf)

    def _zone(self, resource: str, limit: Limit) -> str:
        calendar = self._pool.resources[resource].calendar
        return limit.zone or ("UTC" if calendar is None else self._pool.calendars[calendar].zone)
