"""The snapshot that the owner of a pool saves once a second, for the API, the commands, the dashboard and `submit`.

A new field needs a default, so that a process of another version reads the snapshot, too.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from emq_scheduling.model import Limit

STALE_S = 10.0
"""Age, in seconds, of a snapshot from which on no host counts as scheduling the pool."""

LOOK_AHEAD_S = 86_400.0
"""Longest wait that is predicted, in seconds; a longer one counts as infinite."""


def limit_key(limit: Limit) -> str:
    """Return the name of a limit within its resource, such as "requests/second"."""
    return f"{limit.name}/{limit.per}"


class TypeCost(msgspec.Struct, frozen=True, omit_defaults=True):
    """The costs of tasks of one type under one limit, beside those that the pool says.

    Attributes:
        named: the part of the waiting tasks that bring a cost of their own, 0 to 1.
        own: units of these costs, on average over all waiting tasks.
        own_used: units that such tasks really use, for each unit of their own costs.
        charged: units that other tasks are charged at the start, for each unit that the pool says.
        used: units that these really use, for each unit that the pool says.
    """

    named: float = 0.0
    own: float = 0.0
    own_used: float = 1.0
    charged: float = 1.0
    used: float = 1.0

    def at_start(self, cost: float) -> float:
        """Return the units that a task is charged at the start, on average, where the pool says `cost`."""
        return self.own + (1.0 - self.named) * cost * self.charged

    def at_end(self, cost: float) -> float:
        """Return the units that a task has used at its end, on average, where the pool says `cost`."""
        return self.own * self.own_used + (1.0 - self.named) * cost * self.used


Known = Mapping[str, TypeCost]
"""By limit, how the costs of a type differ from those that the pool says; without limits for which nothing is known."""


class PoolState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first state of a prediction.

    Attributes:
        at: seconds since the epoch.
        waiting: tasks that have not started, by type, in the store and on the host; one with fallbacks counts for the
            type as which it waits on the host.
        arrivals: tasks submitted in a second, by type; measured, without those of `held`.
        running: tasks, by resource.
        started: tasks started in the last whole second, by resource.
        closed: why a resource starts nothing, by resource; without those that are open.
        factors: the part of its limits that a resource's health leaves, above 0 and below 1; without those at 1.
        durations: seconds that a task takes, by type; measured.
        used: units used in the present period by `limit_key`, by resource.
        costs: what is known of the tasks' costs, by type and limit.
        held: those of the waiting tasks that wait for room under a limit by key, by type; forecasts leave them out.
    """

    at: float
    waiting: dict[str, int] = {}
    arrivals: dict[str, float] = {}
    running: dict[str, int] = {}
    started: dict[str, int] = {}
    closed: dict[str, str] = {}
    factors: dict[str, float] = {}
    durations: dict[str, float] = {}
    used: dict[str, dict[str, float]] = {}
    costs: dict[str, dict[str, TypeCost]] = {}
    held: dict[str, int] = {}


class Waits(msgspec.Struct, frozen=True, omit_defaults=True):
    """Waits from submit to start, of tasks that started in the last minutes, in seconds.

    Attributes:
        over_s: length of the time that was measured.
        late: tasks that started after their deadline.
    """

    over_s: float = 0.0
    count: int = 0
    mean_s: float = 0.0
    p50_s: float = 0.0
    p99_s: float = 0.0
    longest_s: float = 0.0
    late: int = 0


class LimitView(msgspec.Struct, frozen=True, omit_defaults=True):
    """One limit of a resource now.

    Attributes:
        amount: units that hold now, by calendar and health.
        configured: units as the pool has them, without calendar and health.
        used: units in the present period; of a second, those of the second before if they were more. Above the amount
            if tasks cost more than was estimated. Of a bucket, the part of its burst that is missing, of the amount.
        kind: how the period counts; empty in flight.
        burst: of a bucket that has one of its own.
        left: units that are left by the provider's word, if that holds now and is less than what EMQ counts; else None.
        left_until: when that ends, in seconds since the epoch; 0 without it.
    """

    name: str
    per: str
    amount: float
    configured: float
    used: float = 0.0
    kind: str = ""
    burst: float | None = None
    left: float | None = None
    left_until: float = 0.0


class KeyLimitView(msgspec.Struct, frozen=True, omit_defaults=True):
    """One limit by tenant or by key now.

    Attributes:
        keys: that count now: tasks of theirs run, or started within the period.
        held: keys for whose room tasks wait.
        waiting: these tasks, of those that the host has read.
        most: some of these keys, as in `KeyLimit.amounts`, with the number of their tasks that wait; those with the
            most first.
        waits: seconds for which a new task would wait for room, of the keys with the most waiting tasks, 100 at most;
            None for over a day.
    """

    keys: int = 0
    held: int = 0
    waiting: int = 0
    most: dict[str, int] = {}
    waits: dict[str, float | None] = {}


class ResourceView(msgspec.Struct, frozen=True, omit_defaults=True):
    """One resource, or parent, now.

    Attributes:
        running: tasks that run on it, or below it.
        started_per_s: tasks started there, a second, over the last ten seconds.
        binds: the limit that holds the resource back now, with its owner, such as "requests/second of acme"; empty for
            none.
        closed: why it starts nothing: paused, or its health; empty if it is open.
        closed_until: seconds since the epoch; 0 if unknown or open.
        factor: the part of its limits that its health leaves; 1 for all.
        done, failed: tasks that ended, and attempts that failed, there, since the host took the pool over.
        slowed: why its factor is below 1; empty if it is not, or if the resource is closed.
    """

    limits: tuple[LimitView, ...] = ()
    running: int = 0
    started_per_s: float = 0.0
    binds: str = ""
    closed: str = ""
    closed_until: float = 0.0
    factor: float = 1.0
    done: int = 0
    failed: int = 0
    slowed: str = ""


class CostView(msgspec.Struct, frozen=True, omit_defaults=True):
    """The units of one limit that tasks of a type cost now; where costs differ by resource, by the type's own.

    Attributes:
        said: what the pool says.
        charged: what a task without costs of its own is charged at its start; the estimate.
        used: what the tasks will probably have used at their end, on average, also those with costs of their own.
        waiting: the same of all waiting tasks together.
    """

    said: float
    charged: float
    used: float
    waiting: float = 0.0


class TypeView(msgspec.Struct, frozen=True, omit_defaults=True):
    """One task type now.

    Attributes:
        waiting: tasks that have not started, in the store and on the host.
        running: tasks.
        predicted_wait_s: seconds that a task submitted now would wait; None if it would not start within a day.
        waits: of the tasks that started in the last minutes.
        done, dead, expired, cancelled: tasks that ended, since the host took the pool over.
        tenants: waiting tasks of the tenants with the most of them, by name; empty for a type without tenants.
        costs: by limit; without those of which nothing but the pool's own costs is known.
        held: those of the waiting tasks that wait for room under a limit by key.
    """

    waiting: int = 0
    running: int = 0
    predicted_wait_s: float | None = None
    waits: Waits = Waits()
    done: int = 0
    dead: int = 0
    expired: int = 0
    cancelled: int = 0
    tenants: dict[str, int] = {}
    costs: dict[str, CostView] = {}
    held: int = 0


class Snapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pool as its owner sees it.

    Attributes:
        version: of the pool that the owner follows.
        host: name of the owner.
        since: seconds since the epoch; when the host took the pool over.
        resources, types: by name.
        limits: those by tenant and by key, by name.
    """

    pool: str
    version: int
    host: str
    state: PoolState
    since: float = 0.0
    resources: dict[str, ResourceView] = {}
    types: dict[str, TypeView] = {}
    limits: dict[str, KeyLimitView] = {}

    @property
    def at(self) -> float:
        """Seconds since the epoch."""
        return self.state.at

    def is_stale(self, now: float) -> bool:
        """Return whether the snapshot is so old that its host no longer schedules the pool."""
        return now - self.state.at > STALE_S
