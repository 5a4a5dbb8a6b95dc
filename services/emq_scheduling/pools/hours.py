"""Hours of the week as minutes from the beginning of Monday."""

from __future__ import annotations

import re

from emq.runtime import errors
from emq.runtime.inputs import shown
from emq_scheduling.model import Hours

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MIN = 24 * 60
WEEK_MIN = 7 * DAY_MIN

Span = tuple[int, int]
"""Minutes of the week, the end excluded. The end of hours that begin on Sunday may lie in the next week."""

_TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d)|24:00", re.ASCII)


def spans(hours: Hours) -> list[Span]:
    """Return when the hours begin and end, day by day, in the order of the week.

    Raises:
        InvalidPool: a day or a time is not written right, or the hours have no length.
    """
    start, end = minute(hours.start), minute(hours.end)
    if start == end:
        raise errors.InvalidPool(f"start {hours.start} is also the end; for whole days write 00:00 and 24:00")
    if start == DAY_MIN:
        raise errors.InvalidPool("start 24:00 is the end of the day; write 00:00, and name the next day")
    length = end - start if end > start else end - start + DAY_MIN
    return [(day * DAY_MIN + start, day * DAY_MIN + start + length) for day in days(hours.days)]


def minute(text: str) -> int:
    """Return the minute of the day, 0 to 1440. Raises `InvalidPool` unless the text is "HH:MM"."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise errors.InvalidPool(f"time {shown(text)} is not HH:MM; write it such as 08:30, at most 24:00")
    return DAY_MIN if found[1] is None else int(found[1]) * 60 + int(found[2])


def days(text: str) -> list[int]:
    """Return the numbers of the days in "mon-fri" or "sat,sun", Monday being 0; all for an empty text.

    Raises:
        InvalidPool: the text names something that is not a day.
    """
    if not text.strip():
        return list(range(7))
    found = set[int]()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        names = [first.strip().lower(), last.strip().lower() if dash else first.strip().lower()]
        if wrong := [name for name in names if name not in DAYS]:
            raise errors.InvalidPool(f"day {shown(wrong[0])} is not one of {', '.join(DAYS)}; write mon-fri or sat,sun")
        begin, end = map(DAYS.index, names)
        found.update(day % 7 for day in range(begin, end + 1 if end >= begin else end + 8))
    return sorted(found)


def overlap(one: Hours, other: Hours) -> bool:
    """Return whether some minute of the week lies in both."""
    return any(
        a < d + shift and c + shift < b
        for a, b in spans(one)
        for c, d in spans(other)
        for shift in (-WEEK_MIN, 0, WEEK_MIN)
    )
