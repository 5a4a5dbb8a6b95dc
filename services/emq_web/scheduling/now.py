"""`/v1/pools/{pool}/snapshot` and `/v1/pools/{pool}/what-if`: the state of a pool, and forecasts."""

from __future__ import annotations

import datetime
import math
from typing import Annotated

import msgspec
import pydantic

from emq.runtime import errors
from emq_clients.pools import answers
from emq_scheduling.forecast import what_if
from emq_scheduling.forecast.prediction import HORIZON_S
from emq_scheduling.model import Pool
from emq_scheduling.pools import rules
from emq_scheduling.records.snapshot import PoolState, ResourceView, Snapshot
from emq_web import forms, models
from emq_web.scheduling import access, verdicts
from emq_web.scheduling.desk import PoolDesk

router = models.Router(prefix="/v1/pools/{pool}", tags=["pools"])

MOST_CHANGES = 50
MOST_TASKS = 1_000_000_000


for _kind in (
    answers.LimitNow,
    answers.ResourceNow,
    answers.WaitsNow,
    answers.CostNow,
    answers.TypeNow,
    answers.KeyLimitNow,
):
    models.answer(_kind)


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


def _time(seconds: float) -> datetime.datetime | None:
    return forms.time_or_none(round(seconds * 1e6)) if math.isfinite(seconds) else None


def _resource(view: ResourceView) -> answers.ResourceNow:
    limits = [forms.shown(answers.LimitNow, each, left_until=_time(each.left_until)) for each in view.limits]
    return forms.shown(answers.ResourceNow, view, closed_until=_time(view.closed_until), limits=limits)


def _snapshot(pool: Pool, found: Snapshot | None, now: float) -> answers.Snapshot:
    verdict = verdicts.of(pool, found, now)
    resources, types = ({}, {}) if found is None else (found.resources, found.types)
    arrivals = {} if found is None else found.state.arrivals
    return answers.Snapshot(
        pool=pool.name,
        state=verdict.state,
        verdict=verdict.text,
        live=found is not None and not found.is_stale(now),
        at=None if found is None else _time(found.at),
        host=None if found is None else found.host,
        since=None if found is None else _time(found.since),
        version=None if found is None else found.version,
        resources={name: _resource(view) for name, view in resources.items()},
        types={
            name: forms.shown(answers.TypeNow, view, arrivals_per_s=arrivals.get(name)) for name, view in types.items()
        },
        limits={} if found is None else {name: forms.shown(answers.KeyLimitNow, v) for name, v in found.limits.items()},
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
async def get_snapshot(of: access.PoolReader) -> answers.Snapshot:
    """Show what the owner of the pool told last, once a second: limits, use, waits, predictions, health."""
    stored = await of.desk.catalog.get(of.pool)
    return _snapshot(stored.pool, await of.desk.snapshots.load(of.pool), of.desk.now())


@router.post("/what-if")
async def ask_what_if(body: WhatIfBody, of: access.PoolReader) -> answers.WhatIf:
    """Forecast the pool from now on as it is, and with changes, which are not made.

    The backlog and the arrivals of now run on a virtual clock, with the limits, calendars, priorities and shares.
    """
    stored = await of.desk.catalog.get(of.pool)
    after = what_if.changed(stored.pool, body.changes)
    now, is_live = await state_now(of.desk, of.pool)
    state = _assumed(stored.pool, now, body)
    found = await of.desk.what_if(of.caller.key.account, stored.pool, state, after, body.horizon_s)
    return forms.shown(answers.WhatIf, found, live=is_live, warnings=rules.warnings(after, state.waiting))
