"""When amounts and hours change, for a simulation that goes from change to change."""

from __future__ import annotations

from emq.scheduling import calendars
from emq.scheduling.model import Limit, Pool

MARGIN_S = 1e-3
"""Times within this of a change count as after the change: sums of steps are not exact."""


class Changes:
    """The calendars, days and hours of a pool. Times are seconds since the epoch."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._day_zones = {
            self._zone(name)
            for name, resource in pool.resources.items()
            if any(limit.per == "day" for limit in resource.limits)
        }

    def amount(self, resource: str, limit: Limit, now: float) -> float:
        """Return the amount of a limit of the resource."""
        return limit.amount

    def allows(self, kind: str, now: float) -> bool:
        """Return whether tasks of the type may start, in the zone of the pool."""
        return True

    def is_midnight(self, resource: str, now: float) -> bool:
        """Return whether a day of the resource's zone begins."""
        zone, now = self._zone(resource), now + MARGIN_S
        return now - calendars.day_start(zone, calendars.day_at(zone, now)) < 2 * MARGIN_S

    def next_at(self, now: float) -> float:
        """Return the first time after now at which something changes."""
        now += MARGIN_S
        times = [calendars.day_start(zone, calendars.day_at(zone, now) + 1) for zone in self._day_zones]
        return min(times, default=float("inf"))

    def _zone(self, resource: str) -> str:
        calendar = self._pool.resources[resource].calendar
        return "UTC" if calendar is None else self._pool.calendars[calendar].zone
