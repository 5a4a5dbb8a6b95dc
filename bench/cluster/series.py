"""Values that grow with time, sampled in one process and read in another, and their rates."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

SAMPLE_S = 0.1


class Sample(NamedTuple):
    """Values at one time.

    Attributes:
        s: time in seconds, by the clock that all processes of the machine share.
        started: messages started so far.
        cpu_s: CPU seconds used so far.
    """

    s: float
    started: float
    cpu_s: float


def sampled(started: float, cpu_s: float) -> Sample:
    """Return a sample of the present time."""
    return Sample(time.monotonic(), started, cpu_s)


class SeriesFile:
    """The file to which a process writes its samples; each sample is in the file at once."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def add(self, started: int, cpu_s: float) -> None:
        os.write(self._file, "{} {} {}\n".format(*sampled(started, cpu_s)).encode())


def read(path: Path) -> list[Sample]:
    """Return the samples so far; an empty list if the file does not exist yet."""
    if not path.exists():
        return []
    lines = path.read_text().split("\n")[:-1]
    return [Sample(*map(float, line.split())) for line in lines]


def common(all_series: Sequence[Sequence[Sample]]) -> tuple[float, float]:
    """Return the begin and end of the time in which all hosts started messages; there is none if begin >= end."""
    begins = [next((sample.s for sample in series if sample.started), series[-1].s) for series in all_series]
    ends = [
        max((sample.s for sample in series if sample.started < series[-1].started), default=series[0].s)
        for series in all_series
    ]
    return max(begins), min(ends)


def between(series: Sequence[Sample], begin_s: float, end_s: float) -> tuple[float, float]:
    """Return messages and CPU seconds, each per second, between two times in the series; interpolate linearly."""
    first, last = _at(series, begin_s), _at(series, end_s)
    return (last.started - first.started) / (end_s - begin_s), (last.cpu_s - first.cpu_s) / (end_s - begin_s)


def _at(series: Sequence[Sample], s: float) -> Sample:
    after = next((i for i, sample in enumerate(series) if sample.s >= s), len(series) - 1)
    a, b = series[max(0, after - 1)], series[after]
    part = min(1.0, (s - a.s) / (b.s - a.s)) if b.s > a.s else 1.0
    return Sample(s, a.started + part * (b.started - a.started), a.cpu_s + part * (b.cpu_s - a.cpu_s))
