"""How much of the processors other programs took: a wait measured on a busy machine says little about EMQ."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_IDLE, _IO_WAIT, _STEAL = 3, 4, 7
_USER, _SYSTEM = 11, 12
"""Columns of /proc/stat, and of /proc/<pid>/stat behind the program's name."""


class Usage(NamedTuple):
    """Processor time so far, in clock ticks.

    Attributes:
        total: all that there was.
        busy: what was used by anybody, other guests of the same hardware included.
        own: what this process and its children used.
    """

    total: int
    busy: int
    own: int

    @classmethod
    def now(cls) -> Usage | None:
        """Read it; None where there is no /proc to read it from."""
        try:
            times = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1 : _STEAL + 2]]
            pid = os.getpid()
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            own = sum(_ticks(each) for each in (str(pid), *children))
        except (OSError, ValueError, IndexError):
            return None
        total = sum(times)
        return cls(total, total - times[_IDLE] - times[_IO_WAIT], own)


def taken_by_others(before: Usage | None, after: Usage | None) -> float:
    """Part of all processor time between two readings that went to others, 0 to 1; 0 if that is not known."""
    if before is None or after is None or after.total <= before.total:
        return 0.0
    others = (after.busy - before.busy) - (after.own - before.own)
    return min(1.0, max(0.0, others / (after.total - before.total)))


def _ticks(pid: str) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[_USER]) + int(fields[_SYSTEM])
