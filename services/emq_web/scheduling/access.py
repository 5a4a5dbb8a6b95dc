"""The rights on pools, which belong to no tenant of the push service, and the requests' access to the desk."""

from __future__ import annotations

from typing import Annotated, cast

import fastapi

from emq_scheduling.pools.rules import MAX_NAME_BYTES
from emq_web.access import Admin, Submitter
from emq_web.scheduling.desk import PoolDesk

__all__ = ["Admin", "Desk", "PoolName", "Submitter"]


async def desk_of(request: fastapi.Request) -> PoolDesk:
    """Return the desk behind the application."""
    return cast("PoolDesk", request.app.state.desk)


Desk = Annotated[PoolDesk, fastapi.Depends(desk_of)]
PoolName = Annotated[str, fastapi.Path(max_length=MAX_NAME_BYTES, description="the pool's name, chosen by you")]
