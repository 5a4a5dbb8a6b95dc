"""What really happens: each task of a backlog goes through the real matching and real accounts, on a virtual clock.

Only the event loop, the store and the performers are left out: a task runs for exactly as long as its type says.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping

from bench.scheduling.counting import Start
from emq_scheduling.choice.keeping import Keeping
from emq_scheduling.choice.matching import Matching
from emq_scheduling.choice.waiting import Waiting
from emq_scheduling.limits.accounts import Accounts, Charge
from emq_scheduling.model import Pool
from emq_scheduling.tasks import Task

WINDOW = 500
"""Tasks of each type that the matching sees at the same time, as on a host."""

AT_ONCE = 64
"""Most starts of one call of the matching."""


class Replayed:
    """What happened.

    Attributes:
        waits: seconds from the beginning, or from the submission, to the start, by type.
        starts: tasks started, by resource.
        drained_s: seconds until no task waited any more; infinity if tasks still waited at the end.
    """

    def __init__(self, pool: Pool) -> None:
        self.waits: dict[str, array[float]] = {name: array("d") for name in pool.types}
        self.starts: Counter[str] = Counter()
        self.drained_s = math.inf


class _Source:
    """The tasks of one type, in the order of their submission: first a backlog, then arrivals at random times."""

    def __init__(self, pool: Pool, kind: str, waiting: int, rate: float, at: float, random_: random.Random) -> None:
        self._pool, self._kind, self._at = pool, kind, at
        self._times = self._submitted(waiting, rate, random_)
        self.next_at = next(self._times, math.inf)
        self._count = 0

    def _submitted(self, waiting: int, rate: float, random_: random.Random) -> Iterator[float]:
        age_s = waiting / rate if rate > 0 else 1.0
        for number in range(waiting):
            yield self._at - age_s * (1 - number / waiting)
        at = self._at
        while rate > 0:
            at += random_.expovariate(rate)
            yield at

    def take(self) -> Waiting:
        submitted, self.next_at = self.next_at, next(self._times, math.inf)
        longest_wait_s = self._pool.types[self._kind].longest_wait_s
        deadline = None if longest_wait_s is None else submitted + longest_wait_s
        id_ = f"{self._kind}-{self._count}"
        self._count += 1
        return Waiting(
            Task(id_, self._pool.name, self._kind, "", None, b"", 1, round(submitted * 1e6), deadline=deadline), 0
        )


class Replay:
    """One run of a pool.

    Args:
        pool: has passed `rules.check`.
        waiting: tasks that wait at the beginning, by type.
        arrivals: tasks a second that come later, by type; at random times.
        at: the beginning, in seconds since the epoch.
        seed: of the times at which tasks come.
    """

    def __init__(
        self, pool: Pool, waiting: Mapping[str, int], arrivals: Mapping[str, float], at: float = 1e9, seed: int = 1
    ) -> None:
        random_ = random.Random(seed)
        self._pool, self._at, self._now = pool, at, at
        self._accounts = Accounts(pool, at)
        self._matching = Matching(pool, Keeping(pool, self._accounts, at))
        self._sources = {
            kind: _Source(pool, kind, waiting.get(kind, 0), arrivals.get(kind, 0.0), at, random_) for kind in pool.types
        }
        self._held: dict[str, int] = dict.fromkeys(pool.types, 0)
        self._ends: list[tuple[float, int, str, Charge]] = []
        self._counter = itertools.count()
        self._replayed = Replayed(pool)
        self._started: list[Start] = []

    def run(self, longest_s: float = math.inf) -> Replayed:
        """Go on until no task waits, or until the time is over."""
        while self._now < self._at + longest_s:
            self._feed()
            if self._replayed.starts and not self._matching.window.count:
                self._replayed.drained_s = self._now - self._at
                break
            starts = self._matching.run(self._now, AT_ONCE)
            for start in starts:
                kind = start.waiting.task.type
                since = max(self._at, start.waiting.task.submitted_us / 1e6)
                self._replayed.waits[kind].append(max(0.0, self._now - since))
                self._replayed.starts[start.resource] += 1
                self._started.append(Start(self._now, kind, start.resource))
                self._held[kind] -= 1
                ends_at = self._now + self._pool.types[kind].duration_s
                heapq.heappush(self._ends, (ends_at, next(self._counter), start.resource, start.charge))
            if not starts:
                self._go_on()
        return self._replayed

    def starts(self) -> list[Start]:
        """Return all starts in their order."""
        return self._started

    def _feed(self) -> None:
        """Let the matching see the tasks that have come, up to its window."""
        for kind, source in self._sources.items():
            while source.next_at <= self._now and self._held[kind] < WINDOW:
                self._matching.add(source.take(), self._now)
                self._held[kind] += 1

    def _go_on(self) -> None:
        """Go to the next time at which something happens."""
        times = [self._matching.next_at(self._now)]
        times += [self._ends[0][0]] if self._ends else []
        times += [source.next_at for kind, source in self._sources.items() if self._held[kind] < WINDOW]
        self._now = max(self._now + 1e-6, min(times))
        while self._ends and self._ends[0][0] <= self._now:
            _, _, resource, charge = heapq.heappop(self._ends)
            charge.end(self._now)
            self._matching.lineups.freed(resource, is_refund=False)
