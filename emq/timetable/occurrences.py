"""Computes the due occurrences of a schedule and its state after them. All functions are pure."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from emq.timetable import cron
from emq.timetable.schedule import Schedule

MISSED_AFTER_MS = 10_000
"""An occurrence counts as missed this many milliseconds after its due time: longer than a restart, or a move of its
group, takes."""

STEPS = 1000
"""Most occurrences looked at in one call, so that catching up with a year of minutes does not block others for long."""


class Fired(NamedTuple):
    """Attributes:
    occurrences: (number, due time in ms) of each occurrence to publish, ascending in both.
    following: the schedule after these occurrences, which may be due already; None if it has ended.
    """

    occurrences: list[tuple[int, int]]
    following: Schedule | None


def fire(schedule: Schedule, now_ms: int, limit: int = STEPS) -> Fired:
    """Return the occurrences that a schedule publishes at `now_ms`, and the schedule after them.

    `now_ms` decides only which occurrences count as missed. So a repeated call gives the same numbers with the same due
    times.

    Args:
        schedule: the schedule.
        now_ms: milliseconds since the epoch.
        limit: most occurrences to publish at once, at least 1; the next call returns the other due ones.
    """
    course = ScheduleProgress(schedule)
    missed_before = now_ms - MISSED_AFTER_MS
    if schedule.missed != "all":
        course.jump(missed_before, keep=schedule.missed == "once")
    occurrences: list[tuple[int, int]] = []
    for _ in range(STEPS):
        due_ms = course.due_ms
        if due_ms is None or due_ms > now_ms or len(occurrences) >= limit:
            break
        number = course.advance()
        following_ms = course.due_ms
        is_last_missed = following_ms is None or following_ms >= missed_before
        if due_ms >= missed_before or schedule.missed == "all" or (schedule.missed == "once" and is_last_missed):
            occurrences.append((number, due_ms))
    return Fired(occurrences, course.schedule())


def upcoming(schedule: Schedule, count: int) -> list[tuple[int, int]]:
    """Return numbers and due times of the next `count` occurrences, or fewer if the schedule ends before."""
    course = ScheduleProgress(schedule)
    found: list[tuple[int, int]] = []
    while len(found) < count and (due_ms := course.due_ms) is not None:
        found.append((course.advance(), due_ms))
    return found


class ScheduleProgress:
    """Steps through a schedule, occurrence by occurrence."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._fired = schedule.fired
        self._firing_ms = schedule.firing_ms
        self._runs = list(schedule.runs)
        self._firings: Iterator[int] | None = None

    @property
    def due_ms(self) -> int | None:
        """Due time of the next occurrence, milliseconds since the epoch; None if the schedule has ended."""
        first = self._runs[0][0] if self._runs else None
        if self._firing_ms is None:
            return first
        begins = self._firing_ms + self._schedule.delay_ms
        return begins if first is None else min(first, begins)

    def advance(self) -> int:
        """Go past the next occurrence; return its number."""
        self._fired += 1
        due_ms, left = self._take()
        if left is None or left > 0:
            insort(
                self._runs,
                (due_ms + self._schedule.every_ms, None if left is None else left - 1),
                key=lambda run: run[0],
            )
        return self._fired

    def jump(self, before_ms: int, *, keep: bool) -> None:
        """Go past all occurrences that are due before a time; with `keep`, all but the last of them.

        Does nothing for a schedule with cron, where the number of occurrences cannot be computed: use `advance`.
        """
        if self._schedule.cron or not self._runs or self._runs[0][0] >= before_ms:
            return
        [(due_ms, left)] = self._runs
        count = 1 if left == 0 else -((due_ms - before_ms) // self._schedule.every_ms)
        count = count if left is None else min(count, left + 1)
        passed = count - keep
        self._fired += passed
        if left is not None and passed > left:
            self._runs = []
        else:
            self._runs = [(due_ms + passed * self._schedule.every_ms, None if left is None else left - passed)]

    def schedule(self) -> Schedule | None:
        """Return the schedule from here on; None if it has ended."""
        if self.due_ms is None:
            return None
        return msgspec.structs.replace(
            self._schedule, fired=self._fired, firing_ms=self._firing_ms, runs=tuple(self._runs)
        )

    def _take(self) -> tuple[int, int | None]:
        """Take the next occurrence from the first run; at equal times, a run under way precedes a new one."""
        if self._firing_ms is not None:
            begins = self._firing_ms + self._schedule.delay_ms
            if not self._runs or begins < self._runs[0][0]:
                self._firing_ms = self._next_firing(self._firing_ms)
                return begins, self._schedule.repeat
        return self._runs.pop(0)

    def _next_firing(self, after_ms: int) -> int | None:
        if self._firings is None:
            self._firings = cron.firings(self._schedule.cron, self._schedule.tz, after_ms)
        return next(self._firings, None)
