"""The rights on pools, which belong to no tenant of the push service, and the requests' access to the desk."""

from __future__ import annotations

from typing import Annotated, NamedTuple, cast

import fastapi

from emq_scheduling.pools.values import MAX_NAME_BYTES
from emq_web.access import Admin, Caller, Submitter
from emq_web.scheduling.desk import PoolDesk


async def desk_of(request: fastapi.Request) -> PoolDesk:
    """Return the desk behind the application."""
    return cast("PoolDesk", request.app.state.desk)


Desk = Annotated[PoolDesk, fastapi.Depends(desk_of)]
PoolName = Annotated[str, fastapi.Path(max_length=MAX_NAME_BYTES, description="the pool's name, chosen by you")]


class PoolVisit(NamedTuple):
    """A request about a pool, which the caller's key allows."""

    pool: str
    desk: PoolDesk
    caller: Caller


async def _reader(pool: PoolName, desk: Desk, by: Submitter) -> PoolVisit:
    return PoolVisit(pool, desk, by.caller)


async def _admin(pool: PoolName, desk: Desk, by: Admin) -> PoolVisit:
    return PoolVisit(pool, desk, by.caller)


PoolReader = Annotated[PoolVisit, fastapi.Depends(_reader)]
"""For tasks, and to look at a pool."""
PoolAdmin = Annotated[PoolVisit, fastapi.Depends(_admin)]
