"""The part of the processors that other programs took: a wait measured on a busy machine says little about EMQ."""

from __future__ import annotations

from typing import NamedTuple

import psutil


class Usage(NamedTuple):
    """Processor time so far, in seconds.

    Attributes:
        total: all time, busy or idle.
        busy: time that anybody used, including other virtual machines on the same hardware.
        own: time that this process and its children used.
    """

    total: float
    busy: float
    own: float

    @classmethod
    def now(cls) -> Usage | None:
        """Return the reading of this moment; None where the system gives none."""
        try:
            this = psutil.Process()
            used = [process.cpu_times() for process in (this, *this.children())]
            all_ = psutil.cpu_times()
        except (psutil.Error, OSError):
            return None
        busy = all_.user + all_.nice + all_.system + all_.irq + all_.softirq + all_.steal
        return cls(busy + all_.idle + all_.iowait, busy, sum(each.user + each.system for each in used))


def taken_by_others(before: Usage | None, after: Usage | None) -> float:
    """Return the part of all processor time between two readings that other programs took, 0 to 1; 0 if unknown."""
    if before is None or after is None or after.total <= before.total:
        return 0.0
    others = (after.busy - before.busy) - (after.own - before.own)
    return min(1.0, max(0.0, others / (after.total - before.total)))
