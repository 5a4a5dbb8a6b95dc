"""What the examples tell afterwards: figures from the records of tasks, the proof from the trail, the limits counted
again from the records."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from emq import App
from emq_proof.proof import Proof, prove
from emq_scheduling import Pool, Scheduling
from emq_scheduling.records.records import Attempt, Records
from emq_scheduling.records.verifying import Proof as Counted
from emq_scheduling.records.verifying import verify


class Facts:
    """All attempts of a run, and what follows from them.

    Args:
        attempts: in the order of their starts.
        counted: each limit, counted again from the attempts.

    Attributes:
        tasks: the last attempts of the tasks that are done.
    """

    def __init__(self, pool: Pool, attempts: Sequence[Attempt], counted: Counted, began_us: int) -> None:
        self.pool = pool
        self.attempts = [each for each in attempts if each.resource]
        self.tasks = [each for each in self.attempts if each.outcome == "done"]
        self.counted = counted
        self.began_us = began_us

    @classmethod
    async def read(cls, scheduling: Scheduling, app: App, pool: str, began_us: int) -> Facts:
        """Read the records of a pool, and count its limits again, as `emq scheduling verify` does."""
        database, environment = app.database, app.settings.environment
        attempts = [each async for page in Records(database, environment).all(pool) for each in page]
        counted = await verify(database, environment, pool)
        return cls((await scheduling.pools.get(pool)).pool, attempts, counted, began_us)

    def second(self, time_us: int) -> int:
        """Return the second of the run, by the seconds in which limits count."""
        return time_us // 1_000_000 - self.began_us // 1_000_000

    @property
    def offset_s(self) -> float:
        """Seconds from the beginning of the first second, as limits count them, to that of the run."""
        return self.began_us % 1_000_000 / 1e6

    @property
    def seconds(self) -> int:
        """Seconds from the beginning to the last start."""
        return 1 + max((self.second(each.started_us) for each in self.attempts), default=0)

    def each_second(
        self, group: Callable[[Attempt], str], at: str = "started_us", value: Callable[[Attempt], float] = lambda _: 1.0
    ) -> dict[str, list[float]]:
        """Return sums by group and second, over all attempts by their starts, or over tasks by another time."""
        sums: dict[str, list[float]] = defaultdict(lambda: [0.0] * self.seconds)
        for each in self.attempts if at == "started_us" else self.tasks:
            second = self.second(getattr(each, at))
            if 0 <= second < self.seconds:
                sums[group(each)][second] += value(each)
        return dict(sums)

    def waits(self, kind: str) -> list[float]:
        """Return the seconds that the tasks of a type waited, from submit to the start of the attempt that did them."""
        return sorted(each.wait_s for each in self.tasks if each.type == kind)

    def p99_each_second(self, kind: str) -> list[float]:
        """Return the p99 wait of the tasks that were submitted in each second; not a number where there were none."""
        waits: dict[int, list[float]] = defaultdict(list)
        for each in self.tasks:
            if each.type == kind:
                waits[self.second(each.submitted_us)].append(each.wait_s)
        return [quantile(sorted(waits[s]), 0.99) if s in waits else math.nan for s in range(self.seconds)]

    def waiting_throughout(self, kind: str) -> list[bool]:
        """Return for each second whether a task of a type waited from its beginning to its end."""
        changes: Counter[int] = Counter()
        for each in self.tasks:
            if each.type == kind:
                first, last = self.second(each.submitted_us) + 1, self.second(each.started_us) - 1
                if first <= last:
                    changes[first] += 1
                    changes[last + 1] -= 1
        found, count = [], 0
        for second in range(self.seconds):
            count += changes[second]
            found.append(count > 0)
        return found


def proof_of(trail: Path) -> Proof:
    """Check the trail of a run whose tasks have all ended."""
    return prove(trail)


def quantile(ordered: Sequence[float], part: float) -> float:
    """Return the value that this part of the values does not exceed; 0 for none."""
    return ordered[min(len(ordered) - 1, math.ceil(part * len(ordered)) - 1)] if ordered else 0.0


def waits_of(facts: Facts) -> dict[str, dict[str, Any]]:
    """Return waits and targets by type, fit for JSON."""
    found = {}
    for name, kind in facts.pool.types.items():
        waits = facts.waits(name)
        late = sum(1 for each in facts.tasks if each.type == name and 0 < each.deadline_us < each.started_us)
        found[name] = {
            "tasks": len(waits),
            "p50_s": round(quantile(waits, 0.5), 4),
            "p99_s": round(quantile(waits, 0.99), 4),
            "longest_s": round(waits[-1], 4) if waits else 0.0,
            "target_s": kind.longest_wait_s,
            "late": late,
        }
    return found


def verdict_of(facts: Facts, proof: Proof, submitted: int) -> dict[str, Any]:
    """Return the verdict on the promises, fit for JSON."""
    once = Counter(each.task for each in facts.tasks)
    held = {
        "ledger complete": not proof.void_reasons,
        "L nothing lost": proof.promises["L"] and len(once) == submitted == proof.published,
        "D nothing done twice": proof.promises["D"] and max(once.values(), default=0) <= 1,
        "X dead letters once": proof.promises["X"],
        "P, K, O, M, T order and owners": all(proof.promises[letter] for letter in "PKOMT"),
        "no limit exceeded": facts.counted.holds and not facts.counted.unproven,
    }
    return {
        "ok": all(held.values()),
        "held": held,
        "submitted": submitted,
        "done": len(once),
        "attempts": len(facts.attempts),
        "limits": len(facts.counted.limits),
        "seconds_over_a_limit": facts.counted.over_s,
    }


def verdict_lines(verdict: dict[str, Any]) -> Iterable[str]:
    """Yield the verdict in words."""
    for promise, holds in verdict["held"].items():
        yield f"  {'held  ' if holds else 'BROKEN'}  {promise}"
    yield (
        f"  {verdict['submitted']:,} tasks submitted, {verdict['done']:,} done in {verdict['attempts']:,} attempts; "
        f"{verdict['limits']} limits counted again from the records: {verdict['seconds_over_a_limit']} s above one"
    )
