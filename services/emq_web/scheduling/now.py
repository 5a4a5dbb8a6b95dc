"""`/v1/pools/{pool}/snapshot` and `/v1/pools/{pool}/what-if`: the state of a pool, and forecasts."""

from __future__ import annotations

import datetime
import math
from typing import Annotated

import fastapi
import msgspec
import pydantic

from emq import errors
from emq_scheduling.forecast import what_if
from emq_scheduling.forecast.prediction import HORIZON_S, Forecast
from emq_scheduling.model import Pool
from emq_scheduling.pools import rules
from emq_scheduling.records.snapshot import PoolState, ResourceView, Snapshot, TypeView
from emq_web import forms
from emq_web.scheduling import access, verdicts
from emq_web.scheduling.desk import PoolDesk

router = fastapi.APIRouter(prefix="/v1/pools/{pool}", tags=["pools"])

MOST_CHANGES = 50
MOST_TASKS = 1_000_000_000


class LimitNow(forms.Shown):
    """A limit of a resource."""

    name: str
    per: str
    amount: float = pydantic.Field(description="units that hold now, by calendar and health")
    configured: float = pydantic.Field(description="units as the pool has them")
    used: float = pydantic.Field(description="units in the present period")


class ResourceNow(forms.Shown):
    """A resource, or a parent with what is below it."""

    limits: list[LimitNow]
    running: int
    started_per_s: float
    binds: str | None = pydantic.Field(description="the limit that holds it back now, and whose; null for none")
    closed: str | None = pydantic.Field(description="why it starts nothing; null if it is open")
    closed_until: datetime.datetime | None
    factor: float = pydantic.Field(description="the part of its limits that its health leaves; 1 for all")
    slowed: str | None = pydantic.Field(description="why its factor is below 1; null if it is not, or if it is closed")
    done: int = pydantic.Field(description="since the host took the pool over, as the other counts")
    failed: int = pydantic.Field(description="attempts that failed")


class WaitsNow(forms.Shown):
    """Waits of the tasks that started in the last minutes, from submit to start."""

    over_s: float
    count: int
    mean_s: float
    p50_s: float
    p99_s: float
    longest_s: float
    late: int = pydantic.Field(description="tasks that started after their deadline")


class TypeNow(forms.Shown):
    """A task type."""

    waiting: int
    running: int
    arrivals_per_s: float | None = pydantic.Field(description="tasks submitted; null while not measured")
    predicted_wait_s: float | None = pydantic.Field(
        description="of a task submitted now; null if it would not start within a day"
    )
    waits: WaitsNow
    done: int
    dead: int
    expired: int
    cancelled: int
    tenants: dict[str, int] = pydantic.Field(description="waiting tasks of the tenants with the most of them")


class SnapshotShown(forms.Shown):
    """A pool as its owner sees it."""

    pool: str
    state: verdicts.State
    verdict: str = pydantic.Field(description="one line for people")
    live: bool = pydantic.Field(description="false if no host has told anything for 10 seconds")
    at: datetime.datetime | None = pydantic.Field(description="when; null if no host ever scheduled the pool")
    host: str | None
    since: datetime.datetime | None = pydantic.Field(description="when the host took the pool over")
    version: int | None = pydantic.Field(description="of the pool that the host follows")
    resources: dict[str, ResourceNow]
    types: dict[str, TypeNow]


class WhatIfBody(forms.Body):
    """What to change, in the words of `emq scheduling what-if`."""

    changes: list[Annotated[str, pydantic.Field(max_length=500)]] = pydantic.Field(
        [],
        max_length=MOST_CHANGES,
        description=f"one after the other: {what_if.WAYS}",
    )
    horizon_s: float = pydantic.Field(HORIZON_S, ge=1, le=30 * 86_400, description="end of the forecasts")
    waiting: dict[str, Annotated[int, pydantic.Field(ge=0, le=MOST_TASKS)]] | None = pydantic.Field(
        None, max_length=1_000, description="waiting tasks by type, instead of those that wait now"
    )
    arrivals: dict[str, Annotated[float, pydantic.Field(ge=0, le=MOST_TASKS)]] | None = pydantic.Field(
        None, max_length=1_000, description="tasks submitted a second by type, instead of those measured"
    )


class TypeForecastShown(forms.Shown):
    """What becomes of the tasks of one type: of those that wait, and of those that come."""

    mean_s: float | None
    p50_s: float | None
    p99_s: float | None
    started: float
    left: float = pydantic.Field(description="tasks that still wait when the forecast ends")
    expired: float


class ForecastShown(forms.Shown):
    """What becomes of a pool."""

    over_s: float
    drained_s: float | None = pydantic.Field(description="seconds until nothing waits; null if something is left")
    types: dict[str, TypeForecastShown]
    starts: dict[str, float] = pydantic.Field(description="by resource")
    utilisation: dict[str, float] = pydantic.Field(description="of its tightest limit, by resource, 0 to 1")


class WhatIfShown(forms.Shown):
    """Two forecasts from the same state."""

    live: bool = pydantic.Field(description="false if no host has told for 10 seconds what waits")
    before: ForecastShown
    after: ForecastShown
    warnings: list[str] = pydantic.Field(description="what is legal, but odd, of the changed pool")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _time(seconds: float) -> datetime.datetime | None:
    return forms.time_or_none(round(seconds * 1e6)) if math.isfinite(seconds) else None


def _resource(view: ResourceView) -> ResourceNow:
    return ResourceNow(
        limits=[LimitNow(**msgspec.structs.asdict(each)) for each in view.limits],
        running=view.running,
        started_per_s=view.started_per_s,
        binds=view.binds or None,
        closed=view.closed or None,
        closed_until=_time(view.closed_until),
        factor=view.factor,
        slowed=view.slowed or None,
        done=view.done,
        failed=view.failed,
    )


def _type(view: TypeView, arrivals: float | None) -> TypeNow:
    values = msgspec.structs.asdict(view)
    waits = WaitsNow(**msgspec.structs.asdict(values.pop("waits")))
    return TypeNow(**values, waits=waits, arrivals_per_s=arrivals)


def _snapshot(pool: Pool, found: Snapshot | None, now: float) -> SnapshotShown:
    verdict = verdicts.of(pool, found, now)
    resources, types = ({}, {}) if found is None else (found.resources, found.types)
    arrivals = {} if found is None else found.state.arrivals
    return SnapshotShown(
        pool=pool.name,
        state=verdict.state,
        verdict=verdict.text,
        live=found is not None and not found.is_stale(now),
        at=None if found is None else _time(found.at),
        host=None if found is None else found.host,
        since=None if found is None else _time(found.since),
        version=None if found is None else found.version,
        resources={name: _resource(view) for name, view in resources.items()},
        types={name: _type(view, arrivals.get(name)) for name, view in types.items()},
    )


def _forecast(of: Forecast) -> ForecastShown:
    types = {
        name: TypeForecastShown(
            mean_s=_finite(each.mean_s),
            p50_s=_finite(each.p50_s),
            p99_s=_finite(each.p99_s),
            started=each.started,
            left=each.left,
            expired=each.expired,
        )
        for name, each in of.types.items()
    }
    return ForecastShown(
        over_s=of.over_s, drained_s=of.drained_s, types=types, starts=of.starts, utilisation=of.utilisation
    )


def _assumed(pool: Pool, state: PoolState, body: WhatIfBody) -> PoolState:
    """Return the state with the caller's assumptions. Raises `InvalidPool` for a type that the pool does not have."""
    for name in {**(body.waiting or {}), **(body.arrivals or {})}:
        if name not in pool.types:
            known = ", ".join(list(pool.types)[:8]) or "none"
            raise errors.InvalidPool(f"pool {pool.name!r} has no task type {name[:80]!r}; it has {known}")
    waiting = state.waiting if body.waiting is None else body.waiting
    arrivals = state.arrivals if body.arrivals is None else body.arrivals
    return msgspec.structs.replace(state, waiting=waiting, arrivals=arrivals)


async def state_now(desk: PoolDesk, pool: str) -> tuple[PoolState, bool]:
    """Return the first state of a forecast, and whether it comes from a fresh snapshot."""
    snapshot = await desk.snapshots.load(pool)
    return desk.state_of(snapshot), snapshot is not None and not snapshot.is_stale(desk.now())


@router.get("/snapshot")
async def get_snapshot(pool: access.PoolName, desk: access.Desk, _: access.Submitter) -> SnapshotShown:
    """Show what the owner of the pool told last, once a second: limits, use, waits, predictions, health."""
    stored = await desk.catalog.get(pool)
    return _snapshot(stored.pool, await desk.snapshots.load(pool), desk.now())


@router.post("/what-if")
async def ask_what_if(pool: access.PoolName, body: WhatIfBody, desk: access.Desk, _: access.Submitter) -> WhatIfShown:
    """Forecast the pool from now on as it is, and with changes, which are not made.

    The backlog and the arrivals of now run on a virtual clock, with the limits, calendars, priorities and shares.
    """
    stored = await desk.catalog.get(pool)
    after = what_if.changed(stored.pool, body.changes)
    now, is_live = await state_now(desk, pool)
    state = _assumed(stored.pool, now, body)
    found = await desk.what_if(stored.pool, state, after, body.horizon_s)
    return WhatIfShown(
        live=is_live,
        before=_forecast(found.before),
        after=_forecast(found.after),
        warnings=rules.warnings(after, state.waiting),
    )
