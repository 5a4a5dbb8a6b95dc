"""CPU time as /proc tells it, of processes and of the whole machine."""

from __future__ import annotations

import os
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
IDLE = (3, 4)
"""Columns of /proc/stat in which the machine did nothing: idle, and waiting for a disk."""


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has used, user and system; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def tree_cpu_s(pid: int) -> float:
    """As `cpu_s`, with what the children of the process have used, alive or waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS_PER_S + sum(tree_cpu_s(int(child)) for child in children)


def busy_s() -> float:
    """CPU seconds that all processes of the machine have used since it started, over all its cores."""
    with open("/proc/stat") as file:
        columns = [int(field) for field in file.readline().split()[1:9]]
    return sum(ticks for column, ticks in enumerate(columns) if column not in IDLE) / TICKS_PER_S


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))
