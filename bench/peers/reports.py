"""What handlers have reported in a log: a line for each start and each end."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Report(NamedTuple):
    """One line.

    Attributes:
        kind: `b` when a handler has begun, `e` when it has ended.
        at_s: time of the report, seconds since the epoch.
        number: of the message.
        queue: of the message.
        published_s: time of the publish, seconds since the epoch.
    """

    kind: str
    at_s: float
    number: int
    queue: int
    published_s: float


def read(log: Path) -> list[Report]:
    """Return the reports in their order; none if there is no log yet."""
    if not log.exists():
        return []
    found = []
    for line in log.read_text().splitlines():
        fields = line.split()
        if len(fields) == 5:
            kind, at_s, number, queue, published_s = fields
            found.append(Report(kind, float(at_s), int(number), int(queue), float(published_s)))
    return found


def caps_of(reports: Sequence[Report], queues: int, from_s: float, to_s: float) -> tuple[int, int, float]:
    """Return least, most and mean of the starts of a queue in a second of the clock, of all whole ones in the span."""
    first, last = math.ceil(from_s), math.floor(to_s)
    starts = Counter((report.queue, math.floor(report.at_s)) for report in reports if report.kind == "b")
    counts = [starts[queue, second] for queue in range(queues) for second in range(first, last)]
    return (min(counts), max(counts), sum(counts) / len(counts)) if counts else (0, 0, 0.0)
