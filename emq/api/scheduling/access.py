"""Who may do what with pools, which belong to no tenant of the push service, and where the requests find the desk."""

from __future__ import annotations

from typing import Annotated, cast

import fastapi

from emq.api.access import Admin, Submitter
from emq.api.scheduling.desk import PoolDesk
from emq.scheduling.pools.rules import MAX_NAME_BYTES

__all__ = ["Admin", "Desk", "PoolName", "Submitter"]


async def desk_of(request: fastapi.Request) -> PoolDesk:
    """Return the desk behind the application."""
    return cast("PoolDesk", request.app.state.desk)


Desk = Annotated[PoolDesk, fastapi.Depends(desk_of)]
PoolName = Annotated[str, fastapi.Path(max_length=MAX_NAME_BYTES, description="the pool's name, chosen by you")]
