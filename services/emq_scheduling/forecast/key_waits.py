"""Predicts how long a new task waits for room under the limits by tenant and by key.

The host of the pool predicts it for the keys with the most waiting tasks, `KEYS` of each limit. A process that submits
adds the tasks that it has submitted since. So it does not know of a key whose amount is used up while no task of it
waits, nor of one with fewer waiting tasks than `KEYS` others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from emq_scheduling.limits.keyed import Counted, Id, KeyAccount
from emq_scheduling.limits.limits import BucketMeter, InFlightMeter
from emq_scheduling.model import DEFAULT_COST, PERIODS_S, Costs, KeyLimit, Pool
from emq_scheduling.records.snapshot import KeyLimitView, Snapshot

KEYS = 100
"""Keys of each limit whose waits a snapshot has."""

MOST = 10_000
"""Keys of which a process counts what it has submitted since the last snapshot; beyond, it forgets all."""


def wait_of(account: KeyAccount, units: float, now: float, duration_s: float) -> float:
    """Return the seconds until the last of these units has room, if the tasks that need them start in order.

    Args:
        units: of a new task and of all of the key that wait before it.
        duration_s: that the tasks take.

    Returns:
        infinity if they never have room.
    """
    meter = account.meter
    most = meter.most if isinstance(meter, BucketMeter) else meter.amount
    if most <= 0:
        return math.inf
    if isinstance(meter, InFlightMeter):
        return max(0.0, units - meter.room(now)) / most * duration_s
    period_s = PERIODS_S[account.per] * most / meter.amount if meter.amount > 0 else math.inf
    whole = _whole_periods(units, most)
    if whole == math.inf:
        return math.inf
    return whole * period_s + max(0.0, meter.next_at(units - whole * most, now) - now)


def _whole_periods(units: float, amount: float) -> float:
    """Return how many periods are used up before the last of these units has room; infinity for a tiny amount."""
    periods = units / amount - 1e-9
    return max(0, math.ceil(periods) - 1) if math.isfinite(periods) else math.inf


class KeyWaits:
    """The waits for limits by key, as a process that submits tasks to one pool knows them."""

    def __init__(self) -> None:
        self._pool = Pool("")
        self._views: Mapping[str, KeyLimitView] = {}
        self._durations: Mapping[str, float] = {}
        self._units: dict[Id, float] = {}  # submitted since the latest snapshot

    def follow(self, pool: Pool) -> None:
        """Take over a changed pool."""
        self._pool = pool

    def look(self, snapshot: Snapshot | None, *, is_new: bool) -> None:
        """Take over what the host of the pool knows.

        Args:
            snapshot: the latest one; None while no host schedules the pool.
            is_new: it has seen the tasks that were submitted before.
        """
        self._views = {} if snapshot is None else snapshot.limits
        self._durations = {} if snapshot is None else snapshot.state.durations
        if is_new:
            self._units.clear()

    def add(self, task: Counted, own: Costs | None) -> None:
        """Count a task that is submitted; `own`: the costs that it brings."""
        for name, limit in self._pool.limits.items():
            if limit.counts_type(task.type):
                if len(self._units) >= MOST:
                    self._units.clear()
                at = (name, limit.key_of(task.tenant, task.keys))
                self._units[at] = self._units.get(at, 0.0) + self._cost(name, limit, task, own)

    def seconds(self, task: Counted, own: Costs | None) -> float:
        """Return the seconds until all limits by key have room for a new task; infinity if one never has."""
        longest = 0.0
        for name, limit in self._pool.limits.items():
            if limit.counts_type(task.type) and (units := self._cost(name, limit, task, own)) > 0:
                longest = max(longest, self._seconds(name, limit, task, units))
        return longest

    def _seconds(self, name: str, limit: KeyLimit, task: Counted, units: float) -> float:
        key = limit.key_of(task.tenant, task.keys)
        amount, before = limit.amount_of(key), self._units.get((name, key), 0.0)
        if amount <= 0:
            return math.inf
        each_s = PERIODS_S.get(limit.per) or self._durations.get(task.type, self._pool.types[task.type].duration_s)
        view = self._views.get(name)
        if view is not None and (text := ",".join(key)) in view.waits:
            known_s = view.waits[text]
            return math.inf if known_s is None else known_s + before / amount * each_s
        burst = limit.burst or amount
        if limit.per == "in_flight" or limit.kind == "bucket":
            return max(0.0, before + units - burst) / amount * each_s
        return _whole_periods(before + units, amount) * each_s

    def _cost(self, name: str, limit: KeyLimit, task: Counted, own: Costs | None) -> float:
        unit = limit.unit(name)
        usual = self._pool.types[task.type].costs.get(unit, DEFAULT_COST)
        return usual if own is None else own.get(unit, usual)
