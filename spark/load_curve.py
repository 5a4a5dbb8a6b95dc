"""How many messages tenants have published up to a time: their average rate, bent by the day's curve and by bursts."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from spark import load_random
from spark.load_plan import Burst, Diurnal, Tenants
from spark.load_random import Array


def rates(tenants: Tenants) -> Array:
    """Messages a second of each tenant on average, the first one's first; they add up to `tenants.qps`."""
    weights = np.arange(1, tenants.count + 1, dtype=np.float64) ** -tenants.zipf
    return weights * (tenants.qps / weights.sum())


class Curve:
    """Counts of messages of some tenants of one table.

    Args:
        tenants: the table.
        chosen: which of its tenants, counted from 0, ascending.
        seeds: of each of these, see `spark.load_random.tenant_seed`; 64 bits without sign.
        duration_s: of the load.
    """

    def __init__(self, tenants: Tenants, chosen: Array, seeds: Array, duration_s: float) -> None:
        self.rates = rates(tenants)[chosen]
        self._diurnal = tenants.diurnal
        # Two tenants of one rate must not publish in step.
        self._phases = load_random.uniform(seeds, load_random.PHASE, np.zeros(len(seeds)))
        self._bursts = [
            (start, end, burst.factor - 1, chosen < round(burst.share * tenants.count))
            for burst in tenants.bursts
            for start, end in _times(burst, duration_s)
        ]

    def until(self, time_s: float) -> Array:
        """How many messages each tenant has published before that time: what a rate without fractions comes to."""
        expected = self.rates * self._seconds(0.0, time_s)
        for start, end, more, mine in self._bursts:
            if time_s > start:
                expected += mine * self.rates * (more * self._seconds(start, min(time_s, end)))
        return np.floor(expected + self._phases).astype(np.int64)

    def peak(self) -> float:
        """Messages a second that the tenants come to together at most, or thereabouts."""
        swing = 1 + (self._diurnal.depth if self._diurnal else 0.0)
        times = sorted({start for start, _, _, _ in self._bursts})
        sums = [float(self.rates.sum())]
        for at in times:
            factors = np.ones(len(self.rates))
            for start, end, more, mine in self._bursts:
                if start <= at < end:
                    factors += more * mine
            sums.append(float((self.rates * factors).sum()))
        return max(sums) * swing

    def _seconds(self, start: float, end: float) -> float:
        """The time from `start` to `end`, the day's curve taken into account."""
        if self._diurnal is None:
            return end - start
        return _area(self._diurnal, end) - _area(self._diurnal, start)


def _area(d: Diurnal, time_s: float) -> float:
    """The curve's integral from its peak on."""
    turn = 2 * math.pi / d.period_s
    return time_s + d.depth / turn * math.sin(turn * (time_s - d.peak_s))


def _times(burst: Burst, duration_s: float) -> Iterator[tuple[float, float]]:
    """(begin, end) of each time that the burst comes within the load."""
    at = burst.from_s
    while at < duration_s:
        yield at, at + burst.for_s
        if burst.every_s is None:
            return
        at += burst.every_s
