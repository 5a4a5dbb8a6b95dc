"""How much of the processors other programs took: a wait measured on a busy machine says little about EMQ."""

from __future__ import annotations

from typing import NamedTuple

import psutil


class Usage(NamedTuple):
    """Processor time so far, in seconds.

    Attributes:
        total: all that there was.
        busy: what was used by anybody, other guests of the same hardware included.
        own: what this process and its children used.
    """

    total: float
    busy: float
    own: float

    @classmethod
    def now(cls) -> Usage | None:
        """Read it; None where the system does not tell it."""
        try:
            this = psutil.Process()
            used = [process.cpu_times() for process in (this, *this.children())]
            all_ = psutil.cpu_times()
        except (psutil.Error, OSError):
            return None
        busy = all_.user + all_.nice + all_.system + all_.irq + all_.softirq + all_.steal
        return cls(busy + all_.idle + all_.iowait, busy, sum(each.user + each.system for each in used))


def taken_by_others(before: Usage | None, after: Usage | None) -> float:
    """Part of all processor time between two readings that went to others, 0 to 1; 0 if that is not known."""
    if before is None or after is None or after.total <= before.total:
        return 0.0
    others = (after.busy - before.busy) - (after.own - before.own)
    return min(1.0, max(0.0, others / (after.total - before.total)))
