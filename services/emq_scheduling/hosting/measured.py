"""The measurements of a scheduler: how long tasks wait and take, how many come, start and end."""

from __future__ import annotations

from collections import Counter, deque

from emq_scheduling.records.snapshot import Waits
from emq_scheduling.tasks import Task

WAITS_S = 300.0
"""Seconds over which waits are reported."""

CELL_S = 10
"""Length, in seconds, of the cells in which waits are kept."""

MOST_WAITS = 1_000
"""Waits kept of one type in one cell; beyond, a stride is doubled, so that each has the same chance to be kept."""

STARTED_S = 10
"""Seconds over which starts of a resource are reported."""

WEIGHT = 0.05
"""Weight of the newest task in the time that tasks of its type take."""


class _Cell:
    """Waits of one type in some seconds."""

    __slots__ = ("at", "count", "late", "longest", "stride", "total", "waits")

    def __init__(self, at: int) -> None:
        self.at = at
        self.count = self.late = 0
        self.total = self.longest = 0.0
        self.stride = 1
        self.waits: list[float] = []

    def add(self, wait_s: float, is_late: bool) -> None:
        if self.count % self.stride == 0:
            self.waits.append(wait_s)
            if len(self.waits) >= MOST_WAITS:
                self.waits = self.waits[::2]
                self.stride *= 2
        self.count += 1
        self.late += is_late
        self.total += wait_s
        self.longest = max(self.longest, wait_s)


class Measured:
    """What tasks do. One with fallbacks counts as of its own type, but takes the time of the type as which it runs.

    Attributes:
    durations: seconds that tasks take, by type, of late.
    outcomes: attempts that ended, by (type, outcome); since the beginning.
    done, failed: attempts by resource.
    """

    def __init__(self, now: float) -> None:
        self.since = now
        self.durations: dict[str, float] = {}
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.running: Counter[str] = Counter()
        self._left: Counter[str] = Counter()
        self._cells: dict[str, deque[_Cell]] = {}
        self._starts: dict[str, deque[tuple[int, int]]] = {}

    def started(self, task: Task, resource: str, now: float) -> None:
        """Note a start; `now` in seconds since the epoch."""
        wait_s = max(0.0, now - task.submitted_us / 1e6)
        own_type = task.type if task.tries is None else task.own_type
        cells = self._cells.setdefault(own_type, deque())
        at = int(now) // CELL_S
        if not cells or cells[-1].at < at:
            cells.append(_Cell(at))
            while cells[0].at < at - WAITS_S / CELL_S:
                cells.popleft()
        cells[-1].add(wait_s, task.deadline is not None and now > task.deadline)
        self.running[own_type] += 1
        self._left[own_type] += task.attempt == 1
        starts = self._starts.setdefault(resource, deque(maxlen=STARTED_S + 2))
        if starts and starts[-1][0] == int(now):
            starts[-1] = (int(now), starts[-1][1] + 1)
        else:
            starts.append((int(now), 1))

    def ended(self, task: Task, resource: str, took_s: float, outcome: str) -> None:
        """Note an attempt that ended after `took_s` seconds; `outcome` as `attempts.Ended` has it."""
        task_type = task.type
        own_type = task_type if task.tries is None else task.own_type
        self.running[own_type] -= 1
        self.outcomes[own_type, outcome] += 1
        if outcome == "done":
            self.done[resource] += 1
            before = self.durations.get(task_type, took_s)
            self.durations[task_type] = before + (took_s - before) * WEIGHT
        else:
            self.failed[resource] += 1

    def dropped(self, task_type: str, outcome: str) -> None:
        """Count a task that ended without a start."""
        self.outcomes[task_type, outcome] += 1
        self._left[task_type] += 1

    def left(self, task_type: str) -> int:
        """Return how many tasks of a type have stopped waiting, since the beginning."""
        return self._left[task_type]

    def waits(self, task_type: str, now: float) -> Waits:
        """Return the waits of the tasks that started in the last minutes."""
        cells = [c for c in self._cells.get(task_type, ()) if c.at >= int(now) // CELL_S - WAITS_S / CELL_S]
        count = sum(cell.count for cell in cells)
        if not count:
            return Waits()
        weighted = sorted((wait, cell.stride) for cell in cells for wait in cell.waits)
        total = sum(stride for _, stride in weighted)
        return Waits(
            over_s=min(WAITS_S, now - self.since),
            count=count,
            mean_s=sum(cell.total for cell in cells) / count,
            p50_s=_quantile(weighted, total * 0.50),
            p99_s=_quantile(weighted, total * 0.99),
            longest_s=max(cell.longest for cell in cells),
            late=sum(cell.late for cell in cells),
        )

    def started_per_s(self, resource: str, now: float, over_s: int = STARTED_S) -> float:
        """Return the starts a second on a resource over the last whole seconds."""
        starts = self._starts.get(resource, ())
        last = int(now)
        return sum(n for second, n in starts if last - over_s <= second < last) / over_s


def _quantile(weighted: list[tuple[float, int]], rank: float) -> float:
    seen = 0
    for wait, stride in weighted:
        seen += stride
        if seen >= rank:
            return wait
    return weighted[-1][0] if weighted else 0.0
