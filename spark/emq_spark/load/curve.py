"""Count the messages that tenants publish up to a time: the average rate, changed by the day's curve and by bursts."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Sequence

import numpy as np

from emq_spark.load import random
from emq_spark.load.plan import Burst, Diurnal, Tenants
from emq_spark.load.random import Array


def rates(tenants: Tenants) -> Array:
    """Return the average rate of each tenant, first tenant first, in messages a second; the sum is `tenants.qps`."""
    weights = np.arange(1, tenants.count + 1, dtype=np.float64) ** -tenants.zipf
    return weights * (tenants.qps / weights.sum())


class Curve:
    """Counts the messages of some tenants of one table.

    Args:
        tenants: the table.
        chosen: numbers of these tenants in the table, counted from 0, ascending.
        seeds: seeds of these tenants, see `emq_spark.load.random.tenant_seed`; unsigned, 64 bits.
        duration_s: seconds of the load.
    """

    def __init__(self, tenants: Tenants, chosen: Array, seeds: Array, duration_s: float) -> None:
        self.rates = rates(tenants)[chosen]
        self._diurnal = tenants.diurnal
        # Without phases, two tenants of one rate would publish in step.
        self._phases = random.uniform(seeds, random.PHASE, np.zeros(len(seeds)))
        bursts = [(burst, max(1, round(burst.share * tenants.count))) for burst in tenants.bursts]
        # Each burst concerns the first tenants of the table, so tenants fall into few lots, each with the same bursts.
        sizes = sorted({size for _, size in bursts})
        self._lots = np.searchsorted(sizes, chosen, side="right")
        self._begins, self._factors = _stretches(bursts, sizes, duration_s)
        self._areas = np.zeros((len(self._begins), len(sizes) + 1))
        for i in range(1, len(self._begins)):
            self._areas[i] = self._reached(i - 1, self._begins[i])

    def until(self, time_s: float) -> Array:
        """Return the number of messages that each tenant has published before that time."""
        area = self._reached(bisect.bisect_right(self._begins, time_s) - 1, time_s)
        return np.floor(self.rates * area[self._lots] + self._phases).astype(np.int64)

    def peak(self) -> float:
        """Return roughly the highest rate of all tenants together, in messages a second."""
        swing = 1 + (self._diurnal.depth if self._diurnal else 0.0)
        of_lots = np.bincount(self._lots, self.rates, minlength=self._factors.shape[1])
        return max(float(self.rates.sum()), float((self._factors @ of_lots).max())) * swing

    def _reached(self, stretch: int, time_s: float) -> Array:
        """Return, for each lot, the sum of factor times seconds up to a time in that stretch."""
        begin = self._begins[stretch]
        return self._areas[stretch] + self._factors[stretch] * self._seconds(begin, time_s)

    def _seconds(self, start: float, end: float) -> float:
        """Return the seconds from `start` to `end`, weighted by the day's curve."""
        if self._diurnal is None:
            return end - start
        return _area(self._diurnal, end) - _area(self._diurnal, start)


def _area(d: Diurnal, time_s: float) -> float:
    """Return the integral of the curve up to that time; only differences of two integrals have a meaning."""
    turn = 2 * math.pi / d.period_s
    return time_s + d.depth / turn * math.sin(turn * (time_s - d.peak_s))


def _stretches(
    bursts: Sequence[tuple[Burst, int]], sizes: Sequence[int], duration_s: float
) -> tuple[list[float], Array]:
    """Return the times at which bursts change the rate, ascending from 0, and each lot's factor from each time on.

    Args:
        bursts: each burst, with the number of tenants that have it.
        sizes: all these numbers, ascending. Lot i has the tenants from number `sizes[i - 1]` to below `sizes[i]`; the
            last lot has the tenants without bursts.
    """
    changes: dict[float, Array] = {0.0: np.zeros(len(sizes) + 1)}
    for burst, size in bursts:
        meant = np.arange(len(sizes) + 1) <= sizes.index(size)
        for start, end in _times(burst, duration_s):
            for at, more in ((start, burst.factor - 1), (end, 1 - burst.factor)):
                changes[at] = changes.get(at, 0.0) + more * meant
    begins = sorted(changes)
    # A sum of factors may miss 0 by rounding, and a negative sum counts as 0.
    return begins, np.maximum(0.0, np.round(1 + np.cumsum([changes[at] for at in begins], axis=0), 9))


def _times(burst: Burst, duration_s: float) -> Iterator[tuple[float, float]]:
    """Yield (begin, end) of each time that the burst lasts within the load."""
    at = burst.from_s
    while at < duration_s:
        yield at, at + burst.for_s
        if burst.every_s is None:
            return
        at += burst.every_s
