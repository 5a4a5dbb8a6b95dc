"""The answers of the API of pools, and so the results of the clients' operations, as in `emq_clients.push.answers`."""

from __future__ import annotations

import datetime
from typing import Annotated, Any

import msgspec

from emq_clients.requests import one_of

STATES = ("flowing", "trouble", "stopped", "unknown")
"""The states of pools."""


class PoolSummary(msgspec.Struct, frozen=True):
    """A pool of a list, and its state.

    Attributes:
        state: "flowing"; "trouble": it flows, and somebody should look; "stopped"; "unknown" while no host schedules
            the pool.
        verdict: the state in one line for people.
        waiting: tasks that have not started; None while unknown.
        started_per_s: in the last second; None while unknown.
    """

    name: str
    version: int
    changed: datetime.datetime
    resources: int
    types: int
    state: Annotated[str, one_of(*STATES)]
    verdict: str
    waiting: int | None = None
    started_per_s: int | None = None


class StoredPool(msgspec.Struct, frozen=True, kw_only=True):
    """A pool as it is stored.

    Attributes:
        version: grows with each change; the ETag.
        pool: what a PUT takes, without values at their defaults.
        warnings: legal but odd settings.
    """

    name: str
    version: int
    changed: datetime.datetime
    warnings: list[str] = []
    pool: dict[str, Any]


class Entry(msgspec.Struct, frozen=True):
    """A resource, task type, calendar, tenant or limit by key of a pool.

    Attributes:
        version: of the pool; the ETag.
        value: what a PUT takes, without values at their defaults.
        warnings: after a change, legal but odd settings of the pool.
    """

    name: str
    version: int
    value: dict[str, Any]
    warnings: list[str] = []


class EntryDeleted(msgspec.Struct, frozen=True):
    """The pool without an entry.

    Attributes:
        version: of the pool; the ETag.
        warnings: legal but odd settings of the pool.
    """

    version: int
    warnings: list[str] = []


class Problem(msgspec.Struct, frozen=True):
    """Why a task was refused; fields as those of `emq_clients.ApiError`."""

    status: int
    code: str
    detail: str


class TaskReceipt(msgspec.Struct, frozen=True):
    """A task that was accepted: it is stored.

    Attributes:
        wait_s: predicted seconds until it starts; None if it would not within a day, or no host schedules it.
    """

    id: str
    wait_s: float | None = None


class TaskOutcome(msgspec.Struct, frozen=True):
    """The outcome of one of several tasks.

    Attributes:
        id: None if it was refused.
        problem: why; None if it was accepted.
    """

    id: str | None = None
    wait_s: float | None = None
    problem: Problem | None = None


class TaskOutcomes(msgspec.Struct, frozen=True):
    """Tasks in the order of the request."""

    accepted: int
    refused: int
    data: list[TaskOutcome]


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt, or the end of a task that never started.

    Attributes:
        attempt: from 1; 0 if the task never started.
        started: when it ended, if it never started.
        wait_s: from submit to start.
        resource: None if the task never started.
        ended: None while it runs.
        costs: units charged at the start, by limit; 1 of any other limit.
        actual: units really used; None if as charged.
        result: the first 4 KiB of the performer's result.
        keys: by which limits by key count it; None for none.
        as_type: the type as which a task with fallbacks ran; None for its own.
    """

    task: str
    type: str
    tenant: str = ""
    key: str | None = None
    resource: str | None = None
    attempt: int
    outcome: Annotated[str, one_of("running", "done", "dead", "expired", "cancelled", "failed", "lost")]
    submitted: datetime.datetime
    started: datetime.datetime
    ended: datetime.datetime | None = None
    deadline: datetime.datetime | None = None
    wait_s: float
    took_s: float | None = None
    costs: dict[str, float] = {}
    actual: dict[str, float] | None = None
    error: str | None = None
    result: str | None = None
    host: str = ""
    keys: dict[str, str] | None = None
    as_type: str | None = None


class TaskStatus(msgspec.Struct, frozen=True):
    """The status of a task.

    Attributes:
        state: "waiting", also for another attempt; "unknown" if somebody asked to cancel it, and it is not found.
        result: of the attempt that did it.
        progress: how far it came, as its performer told it, until it has ended; None for nothing.
        told: when the performer told that.
        attempts: the first one first.
    """

    id: str
    state: Annotated[str, one_of("running", "waiting", "done", "dead", "expired", "cancelled", "unknown")]
    cancel_asked: bool = False
    result: str | None = None
    progress: Any = None
    told: datetime.datetime | None = None
    attempts: list[Attempt] = []

    @property
    def has_ended(self) -> bool:
        """Whether it is done, dead, expired or cancelled, and not tried again."""
        return self.state in ("done", "dead", "expired", "cancelled")


class CancelAsked(msgspec.Struct, frozen=True):
    """A task that somebody wants cancelled.

    Attributes:
        cancel_asked: if it waits, it ends as cancelled within about a second.
    """

    id: str
    cancel_asked: bool


class LimitNow(msgspec.Struct, frozen=True):
    """A limit of a resource.

    Attributes:
        amount: units that hold now, by calendar and health.
        configured: units as the pool has them.
        used: units in the present period. Of a bucket, the part of its burst that is missing, of the amount.
        kind: how the period counts: "rolling", "calendar" or "bucket"; null in flight.
        burst: of a bucket that has one of its own: the units that it holds.
        left: units that are left by the provider's word, if that is less than what EMQ counts.
        left_until: until when that holds.
    """

    name: str
    per: str
    amount: float
    configured: float
    used: float
    kind: str | None = None
    burst: float | None = None
    left: float | None = None
    left_until: datetime.datetime | None = None


class ResourceNow(msgspec.Struct, frozen=True):
    """A resource, or a parent with the resources below it.

    Attributes:
        binds: the limit that holds it back now, with its owner; None for none.
        closed: why it starts nothing; None if it is open.
        factor: the part of its limits that its health leaves; 1 for all.
        slowed: why its factor is below 1; None if it is not, or if it is closed.
        done, failed: tasks done and attempts that failed since the host took the pool over.
    """

    limits: list[LimitNow]
    running: int
    started_per_s: float
    binds: str | None = None
    closed: str | None = None
    closed_until: datetime.datetime | None = None
    factor: float = 1.0
    slowed: str | None = None
    done: int = 0
    failed: int = 0


class WaitsNow(msgspec.Struct, frozen=True):
    """Waits of the tasks that started in the last minutes, from submit to start.

    Attributes:
        late: tasks that started after their deadline.
    """

    over_s: float
    count: int
    mean_s: float
    p50_s: float
    p99_s: float
    longest_s: float
    late: int


class CostNow(msgspec.Struct, frozen=True):
    """The units of one limit that tasks of a type cost; where costs differ by resource, by the type's own.

    Attributes:
        said: what the pool says.
        charged: what a task without costs of its own is charged at its start.
        used: what tasks use, on average, also those with costs of their own.
        waiting: the same of all waiting tasks together.
    """

    said: float
    charged: float
    used: float
    waiting: float = 0.0


class TypeNow(msgspec.Struct, frozen=True, kw_only=True):
    """A task type.

    Attributes:
        arrivals_per_s: tasks submitted, without those that limits by key hold; None while not measured.
        predicted_wait_s: of a task submitted now; None if it would not start within a day.
        tenants: waiting tasks of the tenants with the most of them.
        costs: by limit; without those of which only the pool's own costs are known.
        held: those of the waiting tasks that wait for room under a limit by key; forecasts leave them out.
    """

    waiting: int
    running: int
    arrivals_per_s: float | None = None
    predicted_wait_s: float | None = None
    waits: WaitsNow
    done: int = 0
    dead: int = 0
    expired: int = 0
    cancelled: int = 0
    tenants: dict[str, int] = {}
    costs: dict[str, CostNow] = {}
    held: int = 0


class KeyLimitNow(msgspec.Struct, frozen=True):
    """A limit by tenant or by key.

    Attributes:
        keys: that count now: tasks of theirs run, or started within the period.
        held: keys for whose room tasks wait.
        waiting: these tasks, of those that the host has read.
        most: some of these keys with the number of these tasks; those with the most first.
        waits: seconds for which a new task would wait for room, of the keys with the most waiting tasks, 100 at most;
            null for over a day.
    """

    keys: int
    held: int = 0
    waiting: int = 0
    most: dict[str, int] = {}
    waits: dict[str, float | None] = {}


class Snapshot(msgspec.Struct, frozen=True):
    """A pool as its owner sees it.

    Attributes:
        state: "unknown" while no host schedules the pool.
        verdict: the state in one line for people.
        live: False if no host has reported for 10 seconds.
        at: time of the report; None if no host ever scheduled the pool.
        since: when the host took the pool over.
        version: of the pool that the host follows.
    """

    pool: str
    state: Annotated[str, one_of(*STATES)]
    verdict: str
    live: bool
    at: datetime.datetime | None = None
    host: str | None = None
    since: datetime.datetime | None = None
    version: int | None = None
    resources: dict[str, ResourceNow] = {}
    types: dict[str, TypeNow] = {}
    limits: dict[str, KeyLimitNow] = {}


class TypeForecast(msgspec.Struct, frozen=True, kw_only=True):
    """The forecast of the tasks of one type: of those that wait, and of those that come.

    Attributes:
        left: tasks that still wait when the forecast ends.
    """

    mean_s: float | None = None
    p50_s: float | None = None
    p99_s: float | None = None
    started: float
    left: float
    expired: float


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """The forecast of a pool.

    Attributes:
        drained_s: seconds until nothing waits; None if something is left.
        starts: by resource.
        utilisation: of its tightest limit, by resource, 0 to 1.
    """

    over_s: float
    drained_s: float | None = None
    types: dict[str, TypeForecast]
    starts: dict[str, float]
    utilisation: dict[str, float]


class WhatIf(msgspec.Struct, frozen=True):
    """Two forecasts from the same state.

    Attributes:
        live: False if no host has reported the backlog for 10 seconds.
        warnings: legal but odd settings of the changed pool.
    """

    live: bool
    before: Forecast
    after: Forecast
    warnings: list[str] = []
