"""Make the messages of a plan's tenants for one partition, with their times and contents.

Each tenant belongs to one partition, which publishes the tenant's messages in order. All messages of a slice are drawn
at once (see `emq_spark.load.random`) and then sorted by tenant and priority.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import add
from typing import NamedTuple

import numpy as np

from emq.topics.model import Kind
from emq_spark.load import curve as load_curve
from emq_spark.load import random as lr
from emq_spark.load.batch import Batch, Slice
from emq_spark.load.content import Contents
from emq_spark.load.plan import Plan, Tenants
from emq_spark.load.random import Array

STEP_S = 0.1
"""Most seconds in a slice of a paced load."""

SLICE_ROWS = 10_000
"""Messages in a slice, roughly; a slice is in memory as a whole."""

NUMBER_BITS = 40
"""Low bits of a message's number in the run that count the messages of its tenant."""

MAX_STEP_S = 60.0


class _Table(NamedTuple):
    """The tenants of one table that belong to this partition.

    Attributes:
        numbers: numbers of the tenants in their table, counted from 0.
        places: numbers of the tenants in the whole plan, counted from 0.
        seeds: seeds of the tenants.
    """

    tenants: Tenants
    numbers: Array
    places: Array
    seeds: Array
    curve: load_curve.Curve
    contents: Contents


def dealt(plan: Plan, partitions: int) -> Array:
    """Return the partition of each tenant: the heaviest tenant first, each to the partition with the least load."""
    rates = np.concatenate([load_curve.rates(tenants) for tenants in plan.tenants])
    loads = [(0.0, partition) for partition in range(partitions)]
    dealt = np.zeros(len(rates), dtype=np.int64)
    for place in np.argsort(-rates, kind="stable").tolist():
        load, partition = heapq.heappop(loads)
        dealt[place] = partition
        heapq.heappush(loads, (load + rates[place], partition))
    return dealt


class Synthetic:
    """The messages of one partition; see `emq_spark.load.batch.Source`.

    Args:
        plan: a plan with tenants and a duration.
        seed: seed of the run.
        run: id of the run, with which the messages' ids begin.
        partition, partitions: number of this partition, and number of all partitions.
        paced: make slices of at most `STEP_S`, because each is published at its time; if False, larger slices of about
            `SLICE_ROWS` messages.
    """

    def __init__(self, plan: Plan, seed: int, run: str, partition: int, partitions: int, *, paced: bool = True) -> None:
        self._duration_s = plan.duration_s or 0.0
        self._run = run
        mine = dealt(plan, partitions) == partition
        self._tables: list[_Table] = []
        first = 0
        for tenants in plan.tenants:
            numbers = np.flatnonzero(mine[first : first + tenants.count])
            if len(numbers):
                self._tables.append(_table(tenants, numbers, first, seed, self._duration_s))
            first += tenants.count
        self.per_s = sum(float(table.curve.rates.sum()) for table in self._tables)
        finest = SLICE_ROWS / max(sum(table.curve.peak() for table in self._tables), 1e-9)
        self.step_s = min(STEP_S if paced else MAX_STEP_S, finest)

    @property
    def rows(self) -> int:
        """Number of messages of this partition over the whole load."""
        return sum(int(np.sum(t.curve.until(self._duration_s) - t.curve.until(0.0))) for t in self._tables)

    def slices(self) -> Iterator[Slice]:
        before = [table.curve.until(0.0) for table in self._tables]
        for step in range(math.ceil(self._duration_s / self.step_s)):
            end_s = min((step + 1) * self.step_s, self._duration_s)
            batches: list[Batch] = []
            for i, table in enumerate(self._tables):
                # Where the rate is almost 0, rounding may make a sum of fractions a little smaller.
                until = np.maximum(before[i], table.curve.until(end_s))
                if (counts := until - before[i]).any():
                    batches += self._batches(table, before[i], counts, end_s)
                before[i] = until
            yield Slice(end_s, batches)

    @staticmethod
    def _until(table: _Table, time_s: float) -> Array:
        return table.curve.until(time_s)

    def _batches(self, table: _Table, firsts: Array, counts: Array, end_s: float) -> Iterator[Batch]:
        """Yield the messages of a slice: `counts` messages of each tenant, from number `firsts` on."""
        t = table.tenants
        tenant = np.repeat(np.arange(len(counts)), counts)
        begins = np.cumsum(counts) - counts
        numbers = firsts[tenant] + np.arange(len(tenant)) - begins[tenant]
        priorities = _priorities(t, table.seeds[tenant], numbers)
        due_s = _due(t, table.seeds[tenant], numbers, end_s)
        code = (tenant * max(1, len(t.priorities)) + priorities) * 2 + ~np.isnan(due_s)
        order = np.argsort(code, kind="stable")
        edges = np.flatnonzero(np.diff(code[order], prepend=-1)).tolist()
        drawn = self._drawn(table, tenant[order], numbers[order], due_s[order])
        heads = order[edges]
        alike = zip(edges, [*edges[1:], len(order)], tenant[heads].tolist(), priorities[heads].tolist(), strict=True)
        for begin, end, here, priority in alike:
            batch = drawn if end - begin == len(drawn) else drawn.only(slice(begin, end))
            yield replace(
                batch,
                topic=t.topic_name(int(table.numbers[here]) + 1),
                priority=list(t.priorities)[priority] if t.priorities else None,
                due_s=None if batch.due_s is None or math.isnan(batch.due_s[0]) else batch.due_s,
            )

    def _drawn(self, table: _Table, tenant: Array, numbers: Array, due_s: Array) -> Batch:
        """Draw the messages of many tenants as one batch without topic and priority."""
        t, places, seeds = table.tenants, table.places[tenant], table.seeds[tenant]
        payloads, merge_keys = table.contents.of(places, seeds, numbers)
        ids: Sequence[str] = ()
        if t.topic.kind is Kind.LOG:
            heads = [f"{self._run}.{place:x}." for place in table.places.tolist()]
            ids = list(map(add, map(heads.__getitem__, tenant.tolist()), map("%x".__mod__, numbers.tolist())))
        return Batch(
            topic="",
            seqs=(numbers + (places << NUMBER_BITS)).tolist(),
            payloads=payloads,
            ids=ids,
            keys=_keys(t, seeds, numbers),
            merge_keys=merge_keys,
            due_s=due_s.tolist() if t.delays else None,
            scores=_scores(t, seeds, numbers),
        )


def _table(tenants: Tenants, numbers: Array, first: int, seed: int, duration_s: float) -> _Table:
    places = numbers + first
    seeds = np.array([lr.tenant_seed(seed, place) for place in places.tolist()], dtype=np.uint64)
    curve = load_curve.Curve(tenants, numbers, seeds, duration_s)
    return _Table(tenants, numbers, places, seeds, curve, Contents(tenants, seed))


def _priorities(t: Tenants, seeds: Array, numbers: Array) -> Array:
    """Draw the index of each message's priority in the table's list."""
    if len(t.priorities) < 2:
        return np.zeros(len(numbers), dtype=np.int64)
    bounds = np.cumsum(list(t.priorities.values()))
    drawn = lr.uniform(seeds, lr.PRIORITY, numbers) * bounds[-1]
    return np.searchsorted(bounds, drawn, side="right")


def _due(t: Tenants, seeds: Array, numbers: Array, now_s: float) -> Array:
    """Draw the due time of each message, in seconds after the begin; NaN for at once."""
    due_s = np.full(len(numbers), np.nan)
    if not t.delays:
        return due_s
    # Shares that should add up to 1 may fall short by rounding; the last delay takes the rest.
    bounds = np.cumsum([delay.share for delay in t.delays])
    drawn = lr.uniform(seeds, lr.DELAY, numbers)
    low = 0.0
    for delay, high in zip(t.delays, bounds, strict=True):
        meant = (drawn >= low) & ((drawn < high) | (high > 1 - 1e-9))
        if delay.between_s is not None:
            least, most = delay.between_s
            due_s[meant] = now_s + least + (most - least) * lr.uniform(seeds[meant], lr.DELAY_S, numbers[meant])
        else:
            every = delay.every_s or 1.0
            due_s[meant] = (math.floor(now_s / every) + 1) * every
        low = high
    return due_s


def _keys(t: Tenants, seeds: Array, numbers: Array) -> list[str | None] | None:
    if not t.keys:
        return None
    drawn = lr.skewed(lr.uniform(seeds, lr.KEY, numbers), t.keys, t.key_zipf)
    return [f"k{key:x}" for key in drawn.tolist()]


def _scores(t: Tenants, seeds: Array, numbers: Array) -> list[float] | None:
    if t.numbers is None:
        return None
    lowest, highest = t.numbers
    drawn: list[float] = (lowest + lr.skewed(lr.uniform(seeds, lr.NUMBER, numbers), highest - lowest + 1, 0)).tolist()
    return drawn
