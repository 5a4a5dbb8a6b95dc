"""Makes the snapshot of a pool from its scheduler."""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Mapping

from emq_scheduling import topics
from emq_scheduling.choice.bays import Bay
from emq_scheduling.forecast import key_waits
from emq_scheduling.forecast.pacing import Pace
from emq_scheduling.forecast.prediction import Predictor
from emq_scheduling.hosting.scheduler import Scheduler
from emq_scheduling.model import DEFAULT_COST, TENANT
from emq_scheduling.records.snapshot import (
    LOOK_AHEAD_S,
    CostView,
    KeyLimitView,
    LimitView,
    PoolState,
    ResourceView,
    Snapshot,
    TypeView,
    limit_key,
)

Uses = Mapping[str, Mapping[str, float]]
"""Units by resource and limit."""

BINDS = 0.99
"""The part of a limit from which it binds."""

TENANTS = 10
"""Tenants that a snapshot names for each type."""


class Viewer:
    """Looks at one scheduler repeatedly, to measure changes between looks.

    Args:
        since: when the host took the pool over, in seconds since the epoch.

    Attributes:
        gains: by type, how many times as fast as by the pool's costs tasks start; the most since its last change.
    """

    def __init__(self, scheduler: Scheduler, host: str, since: float) -> None:
        self._scheduler = scheduler
        self._host = host
        self._since = since
        self._version = -1
        self._predictor: Predictor | None = None
        self._paces: dict[str, Pace] = {}
        self._counted: Mapping[str, int] | None = None
        self._tenants: dict[str, Counter[str]] = {}
        self._most: dict[str, dict[str, int]] = {}
        self.gains: dict[str, float] = {}
        self._before: tuple[float, dict[str, int], dict[str, int]] | None = None
        self._arrivals: dict[str, float] = {}

    def look(self, backlog: Mapping[str, int], now: float) -> Snapshot:
        """Return the snapshot of this moment.

        Args:
            backlog: tasks that are not done, by topic; another object whenever they were counted again.
        """
        scheduler = self._scheduler
        if backlog is not self._counted or scheduler.version != self._version:
            self._counted, self._tenants = backlog, _by_type(backlog, scheduler.pool.types)
            self._most = {kind: _most(each) for kind, each in self._tenants.items()}
        if self._predictor is None or scheduler.version != self._version:
            self._predictor, self._version = Predictor(scheduler.pool), scheduler.version
            self._paces, self.gains = {}, {}
        tenants, running = self._tenants, scheduler.measured.running
        unfinished = {kind: each.total() for kind, each in tenants.items()}
        came, went = _passed(scheduler.matching.window.sums.passed)
        here = {kind: scheduler.waiting(kind) + went[kind] - came[kind] for kind in unfinished}
        waiting = {kind: max(0, n - running[kind], here[kind]) for kind, n in unfinished.items()}
        standing = {kind: count + came[kind] - went[kind] for kind, count in waiting.items()}
        held = {kind: n for kind, count in standing.items() if (n := min(count, self._held(kind, tenants[kind])))}
        self._note_arrivals({kind: max(0, count - held.get(kind, 0)) for kind, count in waiting.items()}, now)
        state = self._state(standing, held, tenants, now)
        self._note_gains(state)
        waits = self._predictor.waits(state, now)
        return Snapshot(
            scheduler.pool.name,
            scheduler.version,
            self._host,
            state,
            self._since,
            self._resources(now),
            {
                kind: TypeView(
                    waiting=waiting[kind],
                    running=running[kind],
                    predicted_wait_s=None if math.isinf(waits.get(kind, 0.0)) else waits.get(kind, 0.0),
                    waits=scheduler.measured.waits(kind, now),
                    tenants=self._most[kind],
                    costs=self._costs(kind, state),
                    held=held.get(kind, 0),
                    **{name: scheduler.measured.outcomes[kind, name] for name in _ENDS},
                )
                for kind in scheduler.pool.types
            },
            self._limits(now),
        )

    def _held(self, kind: str, tenants: Counter[str]) -> int:
        """Return how many tasks of a type wait for limits by key: of a tenant all, if none of those here may start."""
        sums, found = self._scheduler.matching.window.sums, 0
        for tenant, count in self._scheduler.matching.bays.aside.get(kind, {}).items():
            is_all = bool(tenant) and count >= sums.of_tenant(kind, tenant)
            found += max(count, tenants[tenant]) if is_all else count
        return found

    def _limits(self, now: float) -> dict[str, KeyLimitView]:
        held = self._scheduler.matching.bays.held()
        found = {}
        for name, count in self._scheduler.accounts.keyed.counts().items():
            bays = held.get(name, [])
            fullest = heapq.nlargest(key_waits.KEYS, bays, key=lambda bay: bay.tasks)
            found[name] = KeyLimitView(
                count,
                len(bays),
                sum(bay.tasks for bay in bays),
                {",".join(bay.account.id[1]): bay.tasks for bay in fullest[:TENANTS]},
                {",".join(bay.account.id[1]): self._key_wait_s(name, bay, now) for bay in fullest},
            )
        return found

    def _key_wait_s(self, name: str, bay: Bay, now: float) -> float | None:
        """Return the seconds that one more task of a key would wait for its room; None for over a day.

        Also of a tenant's tasks that the host has not read yet, which wait behind those that it has.
        """
        scheduler, limit = self._scheduler, self._scheduler.pool.limits[name]
        each, count = bay.units / bay.tasks, bay.tasks
        kinds = [kind for kind in scheduler.pool.types if limit.counts_type(kind)]
        if limit.names == (TENANT,):
            unfinished = sum(self._tenants[kind][bay.account.id[1][0]] for kind in kinds)
            count = max(count, unfinished - bay.account.holds + 1)  # its bay holds it, too
        durations = scheduler.measured.durations
        duration_s = max(durations.get(kind, scheduler.pool.types[kind].duration_s) for kind in kinds)
        wait_s = key_waits.wait_of(bay.account, (count + 1) * each, now, duration_s)
        return wait_s if wait_s < LOOK_AHEAD_S else None

    def _state(
        self, waiting: dict[str, int], held: dict[str, int], tenants: dict[str, Counter[str]], now: float
    ) -> PoolState:
        scheduler, pool = self._scheduler, self._scheduler.pool
        return PoolState(
            now,
            waiting,
            dict(self._arrivals),
            dict(scheduler.running),
            {name: round(scheduler.measured.started_per_s(name, now, 1)) for name in pool.resources},
            scheduler.healths.closed(now),
            {name: f for name in pool.resources if (f := scheduler.accounts.factor(name)) < 1},
            dict(scheduler.measured.durations),
            scheduler.accounts.used(now),
            {
                kind: costs
                for kind in pool.types
                if (costs := scheduler.estimates.costs(kind, tenants[kind], scheduler.matching))
            },
            held,
        )

    def _costs(self, kind: str, state: PoolState) -> dict[str, CostView]:
        usual, found = self._scheduler.pool.types[kind].costs, {}
        for name, known in state.costs.get(kind, {}).items():
            said = usual.get(name, DEFAULT_COST)
            used = known.at_end(said)
            found[name] = CostView(said, said * known.charged, used, used * state.waiting.get(kind, 0))
        return found

    def _note_gains(self, state: PoolState) -> None:
        for kind, known in state.costs.items():
            pace = self._paces.get(kind)
            if pace is None:
                pace = self._paces[kind] = Pace(self._scheduler.pool, kind)
            if (gain := pace.gain(known)) > self.gains.get(kind, 1.0):
                self.gains[kind] = gain

    def _note_arrivals(self, waiting: dict[str, int], now: float) -> None:
        """Estimate the tasks that come in a second: those that started or ended, and the growth of the backlog."""
        left = {kind: self._scheduler.measured.left(kind) for kind in waiting}
        if self._before is not None and now > self._before[0]:
            at, waited, gone = self._before
            for kind, count in waiting.items():
                came = count - waited.get(kind, 0) + left[kind] - gone.get(kind, 0)
                rate, weight = max(0.0, came / (now - at)), 0.2
                self._arrivals[kind] = self._arrivals.get(kind, rate) * (1 - weight) + rate * weight
        self._before = now, dict(waiting), left

    def _resources(self, now: float) -> dict[str, ResourceView]:
        scheduler, pool = self._scheduler, self._scheduler.pool
        used, amounts = scheduler.accounts.used_lately(now), scheduler.accounts.amounts(now)
        healths, until = scheduler.healths, scheduler.matching.lineups.closed_until
        closed, slowed = healths.closed(now), healths.slowed(now)
        below: dict[str, list[str]] = defaultdict(list)
        for name in pool.resources:
            for above in pool.line(name):
                below[above].append(name)
        measured = scheduler.measured
        found = {}
        for name, resource in pool.resources.items():
            limits = tuple(
                LimitView(
                    *(limit.name, limit.per, amounts[name][key], limit.amount, used[name][key]),
                    *(limit.counts or "", limit.burst),
                    *scheduler.accounts.left(name, (limit.name, limit.per), now),
                )
                for limit in resource.limits
                for key in (limit_key(limit),)
            )
            closes_at = until(name)
            found[name] = ResourceView(
                limits,
                sum(scheduler.running[each] for each in below[name]),
                sum(measured.started_per_s(each, now) for each in below[name]),
                self._binds(name, used, amounts),
                closed.get(name, ""),
                closes_at if name in closed and closes_at < math.inf else 0.0,
                scheduler.accounts.factor(name),
                sum(measured.done[each] for each in below[name]),
                sum(measured.failed[each] for each in below[name]),
                "" if name in closed else slowed.get(name, ""),
            )
        return found

    def _binds(self, name: str, used: Uses, amounts: Uses) -> str:
        """Return the limit, of the resource or of a parent, with the least room, if it has next to none."""
        pool, found, most = self._scheduler.pool, "", BINDS
        for each in pool.line(name):
            for key, amount in amounts[each].items():
                part = used[each][key] / amount if amount > 0 else 1.0
                if part >= most and not (found and part == most):
                    found, most = (key if each == name else f"{key} of {each}"), part
        return found


_ENDS = ("done", "dead", "expired", "cancelled")


def _passed(passed: Mapping[tuple[str, str], int]) -> tuple[Counter[str], Counter[str]]:
    """Return by type how many tasks of others stand at a fallback of that type, and how many of its own elsewhere."""
    came, went = Counter[str](), Counter[str]()
    for (own, kind), count in passed.items():
        came[kind] += count
        went[own] += count
    return came, went


def _by_type(backlog: Mapping[str, int], types: Mapping[str, object]) -> dict[str, Counter[str]]:
    """Return the tasks that are not done by type and tenant; the tenant is empty for none."""
    tenants: dict[str, Counter[str]] = {kind: Counter() for kind in types}
    for topic, count in backlog.items():
        _, kind, tenant = topics.parsed(topic)
        if kind in tenants and count:
            tenants[kind][tenant] += count
    return tenants


def _most(tenants: Counter[str]) -> dict[str, int]:
    """Return the tenants with the most tasks."""
    return dict([entry for entry in tenants.most_common(TENANTS + 1) if entry[0]][:TENANTS])
