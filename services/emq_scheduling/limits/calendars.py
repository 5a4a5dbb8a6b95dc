"""Times of day, in the zone of a calendar or of a task: the hours that hold, and their next change.

Hours hold by the clock on the wall. Where the clocks go forward, hours that would begin in the missing time begin at
the change. Where the clocks go back, hours in the repeated time hold twice.
"""

from __future__ import annotations

import bisect
import datetime
import functools
import math
import zoneinfo

from emq_scheduling.model import Hours
from emq_scheduling.pools import hours as weekly

LAST_DAY = datetime.date.max.toordinal() - 1
"""The number of the last day with a known beginning."""

LOOK_AHEAD_DAYS = 8
"""Hours repeat each week; if nothing changes within this many days, it never does."""

DAY_MIN = weekly.DAY_MIN


@functools.lru_cache(maxsize=4096)
def day_start(zone: str, day: int) -> float:
    """Return when a local day begins, in seconds since the epoch.

    Where the clocks go forward over midnight, the day begins at the change.

    Args:
        zone: an IANA name.
        day: the number of the day: the proleptic Gregorian ordinal of its date.
    """
    return _wall(zone, day, 0, 0)


def day_at(zone: str, now: float) -> int:
    """Return the number of the local day at `now`: the ordinal of its date. Consecutive days count up by one."""
    day = datetime.datetime.fromtimestamp(now, zoneinfo.ZoneInfo(zone)).toordinal()
    while day_start(zone, day + 1) <= now:  # the clocks went back over midnight: the day has begun, and stays
        day += 1
    while day_start(zone, day) > now:
        day -= 1
    return day


class Timetable:
    """Hours of the week in a zone. Times are seconds since the epoch.

    Args:
        zone: an IANA name.
        hours: have passed `emq_scheduling.pools.rules.check`.
    """

    __slots__ = ("_active", "_from", "_minutes", "_spans", "_until", "_zone", "hours")

    def __init__(self, zone: str, hours: tuple[Hours, ...]) -> None:
        self._zone = zone
        self.hours = hours
        self._spans = [weekly.spans(each) for each in hours]
        self._minutes = sorted({edge % DAY_MIN for spans in self._spans for span in spans for edge in span})
        self._from = self._until = 0.0  # `_active` holds from here until there
        self._active: tuple[Hours, ...] = ()

    def active(self, now: float) -> tuple[Hours, ...]:
        """Return the hours that hold now."""
        if not self._from <= now < self._until:
            self._find(now)
        return self._active

    def changes_at(self, now: float) -> float:
        """Return when other hours begin to hold than now; infinity for never."""
        if not self._from <= now < self._until:
            self._find(now)
        return self._until

    def open_at(self, now: float) -> float:
        """Return `now` if any hours hold, else when the next begin; infinity for never."""
        at = now
        for _ in range(LOOK_AHEAD_DAYS * (len(self._minutes) + 2)):
            if at == math.inf or self.active(at):
                return at
            at = self.changes_at(at)
        return math.inf

    def _find(self, now: float) -> None:
        self._from, self._active, self._until = now, self._at(now), math.inf
        today = day_at(self._zone, now)
        for day in range(today, today + LOOK_AHEAD_DAYS + 1):
            edges = self._edges(day)
            for edge in edges[bisect.bisect_right(edges, now) :]:
                if self._at(edge) != self._active:
                    self._until = edge
                    return

    def _at(self, now: float) -> tuple[Hours, ...]:
        wall = datetime.datetime.fromtimestamp(math.floor(now), zoneinfo.ZoneInfo(self._zone))
        minute = wall.weekday() * DAY_MIN + wall.hour * 60 + wall.minute
        return tuple(
            hours
            for hours, spans in zip(self.hours, self._spans, strict=True)
            if any(start <= minute < end or start <= minute + weekly.WEEK_MIN < end for start, end in spans)
        )

    def _edges(self, day: int) -> list[float]:
        """Return the times of a day at which hours may begin or end, ascending."""
        begins, ends = day_start(self._zone, day), day_start(self._zone, day + 1)
        found = {_wall(self._zone, day, minute, fold) for minute in self._minutes for fold in (0, 1)}
        found |= {begins, _change_of_clocks(self._zone, begins, ends)}
        return sorted(edge for edge in found if begins <= edge < ends)


def allowed_at(hours: tuple[Hours, ...], zone: str, now: float) -> float:
    """Return when a task may start by its type's hours: now, or when the next hours begin; infinity for never.

    Args:
        hours: of the type; none means always.
        zone: of the task, else of the pool: an IANA name.
    """
    if not hours:
        return now
    return _timetable(zone, tuple((each.start, each.end, each.days) for each in hours)).open_at(now)


@functools.lru_cache(maxsize=4096)
def _timetable(zone: str, hours: tuple[tuple[str, str, str], ...]) -> Timetable:
    """Return the same timetable each time, which remembers the present hours."""
    return Timetable(zone, tuple(Hours(*each) for each in hours))


def _wall(zone: str, day: int, minute: int, fold: int) -> float:
    """Return the time at which the clocks of the zone show a minute of a day; for `fold` 1 the second time."""
    midnight = datetime.datetime.combine(datetime.date.fromordinal(day), datetime.time())
    shown = midnight + datetime.timedelta(minutes=minute)
    return shown.replace(tzinfo=zoneinfo.ZoneInfo(zone), fold=fold).timestamp()


@functools.lru_cache(maxsize=4096)
def _change_of_clocks(zone: str, begins: float, ends: float) -> float:
    """Return when the clocks change between two times, to the second; `begins` if they do not."""
    low, high = int(begins), int(ends)
    before = _offset_s(zone, low)
    if _offset_s(zone, high) == before:
        return begins
    while high - low > 1:
        middle = (low + high) // 2
        if _offset_s(zone, middle) == before:
            low = middle
        else:
            high = middle
    return float(high)


def _offset_s(zone: str, now: int) -> float:
    offset = datetime.datetime.fromtimestamp(now, zoneinfo.ZoneInfo(zone)).utcoffset()
    return 0.0 if offset is None else offset.total_seconds()
