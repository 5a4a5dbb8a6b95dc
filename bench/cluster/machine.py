"""CPU time of the whole machine."""

from __future__ import annotations

import os

import psutil


def busy_s() -> float:
    """Return the CPU seconds that all processes of the machine have used since its start, over all cores."""
    t = psutil.cpu_times()
    return t.user + t.nice + t.system + t.irq + t.softirq + t.steal


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))
