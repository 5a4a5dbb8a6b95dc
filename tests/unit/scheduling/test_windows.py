"""Long limits on a virtual clock: urgent tasks beside an endless backlog, and the most that any window holds."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from bench.support.figures import percentile
from emq_scheduling.choice.matching import Start
from emq_scheduling.model import PERIODS_S, Limit, Pool, Resource, TaskType
from support.matching_bench import Bench

START = 1_000_000.37


class Beside:
    """Chats that come at random beside a batch without end, under one limit.

    Attributes:
        starts: times and units.
        waits: of the chats, in seconds.
    """

    def __init__(self, limit: Limit, *, batch: float = 1.0, real: float | None = None) -> None:
        types = {"chat": TaskType(priority=0), "batch": TaskType(priority=2, costs={"n": batch})}
        resource = Resource(limits=(limit,), takes={kind: {} for kind in types})
        self.bench = Bench(Pool("p", resources={"r": resource}, types=types), START)
        self.starts: list[tuple[float, float]] = []
        self.waits: list[float] = []
        self._came: dict[str, float] = {}
        self._real = real
        self.bench.add("batch", int(2.5 * limit.amount / batch) + 10)

    def run(self, seconds: float, chats_per_s: float, first_s: float = 0.0, seed: int = 1) -> None:
        chance, at, ends = random.Random(seed), START + first_s, self.bench.now + seconds
        while at < ends:
            self._until(at)
            self.chat()
            at += chance.expovariate(chats_per_s)
        self._until(ends)

    def chat(self, count: int = 1) -> None:
        for each in self.bench.add("chat", count):
            self._came[each.task.id] = self.bench.now

    def _until(self, end: float) -> None:
        bench = self.bench
        while True:
            for start in bench.run():
                self._started(start)
            if (at := bench.matching.next_at(bench.now)) >= end:
                break
            bench.now = max(at, bench.now + 1e-6)
        bench.now = end

    def _started(self, start: Start) -> None:
        """Count a start; the task ends at once, and a batch has another task behind it."""
        bench, is_batch = self.bench, start.waiting.task.type == "batch"
        units = self._real if is_batch and self._real is not None else start.costs["n"]
        self.starts.append((bench.now, units))
        start.charge.end(bench.now, {"n": units})
        bench.matching.lineups.freed(start.resource, is_refund=units < start.costs["n"])
        if is_batch:
            bench.add("batch")
        else:
            self.waits.append(bench.now - self._came[start.waiting.task.id])

    def use(self, limit: Limit, since_s: float, seconds: float) -> float:
        """Return the part of the limit that was used in a time."""
        since = START + since_s
        used = sum(units for at, units in self.starts if since <= at < since + seconds)
        return used / (limit.amount * seconds / PERIODS_S[limit.per])


def most_in_any(starts: Sequence[tuple[float, float]], period_s: float) -> float:
    """Return the most units of starts within less than a period, wherever it begins."""
    most = total = 0.0
    first = 0
    for at, units in starts:
        total += units
        while starts[first][0] <= at - period_s:
            total -= starts[first][1]
            first += 1
        most = max(most, total)
    return most


LONG = [Limit("n", 600, "minute"), Limit("n", 3_600, "hour")]


@pytest.mark.parametrize("limit", LONG, ids=["minute", "hour"])
@pytest.mark.parametrize("first_s", [0.0, 20.3])
def test_chats_wait_less_than_a_second_beside_an_endless_batch(limit: Limit, first_s: float) -> None:
    period_s = PERIODS_S[limit.per]
    beside = Beside(limit)
    beside.run(3.2 * period_s, 30 / period_s * (4 if limit.per == "hour" else 1), first_s)
    assert len(beside.waits) > 80
    assert percentile(beside.waits, 99) < 1.0
    assert max(beside.waits[:5]) < 1.0, "also the very first ones"
    assert beside.use(limit, 1.1 * period_s, 2 * period_s) >= 0.97
    assert 0.97 * limit.amount <= most_in_any(beside.starts, period_s) <= limit.amount


@pytest.mark.parametrize(
    "limit",
    [
        Limit("n", 600, "minute", "calendar"),
        Limit("n", 600, "minute", "bucket"),
        Limit("n", 600, "minute", "bucket", 50),
        Limit("n", 6_000, "second", "rolling"),
    ],
    ids=lambda limit: f"{limit.per}-{limit.kind}-{limit.burst or ''}",
)
def test_chats_wait_less_than_a_second_under_each_kind(limit: Limit) -> None:
    if limit.per == "second":
        beside, seconds, warm_s = Beside(limit, batch=20.0), 8.0, 1.0
    else:
        beside, seconds, warm_s = Beside(limit), 190.0, 60.0
    beside.run(seconds, 20.0 if limit.per == "second" else 1.0)
    assert percentile(beside.waits, 99) < 0.5
    assert beside.use(limit, warm_s, seconds - warm_s) >= 0.96


def test_a_burst_of_chats_before_the_batch_does_not_make_later_ones_wait() -> None:
    limit = LONG[0]
    beside = Beside(limit)
    beside.chat(300)
    beside.run(200.0, 0.5, 0.1)
    assert percentile(beside.waits, 99) < 1.0
    assert most_in_any(beside.starts, 60.0) <= 600


def test_a_batch_that_uses_less_than_it_is_charged_still_uses_the_limit() -> None:
    limit = Limit("n", 600, "minute")
    beside = Beside(limit, batch=6.0, real=2.0)
    beside.run(190.0, 0.5)
    assert percentile(beside.waits, 99) < 1.0
    assert beside.use(limit, 66.0, 120.0) >= 0.96


def test_many_chats_at_once_use_an_idle_minute_at_once() -> None:
    beside = Beside(LONG[0])
    beside.chat(580)
    beside.run(1.0, 1e-9, 5.0)
    assert len(beside.waits) == 580
    assert max(beside.waits) == 0.0


def test_a_minute_holds_no_more_wherever_it_begins() -> None:
    beside = Beside(LONG[0])
    beside.chat(1_800)
    beside.run(130.0, 1e-9, 125.0)
    assert len(beside.starts) > 1_200
    assert most_in_any(beside.starts, 60.0) <= 600
