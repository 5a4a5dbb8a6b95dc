"""`/v1/tenants/{tenant}/lag` and `/rate-limit-status`: how far endpoints are behind, and what limits them."""

from __future__ import annotations

from typing import Any

import msgspec

from emq_clients.push import answers
from emq_clients.requests import Page
from emq_push.service import lagging
from emq_web import access, forms, models, parameters

router = models.Router(prefix="/v1/tenants/{tenant}", tags=["lag and limits"])


class Parts(msgspec.Struct):
    """Deliveries that are not done, by what they wait for, as in the lag of an endpoint. null: no host has reported."""

    ready: int
    held_by_rate: int | None
    delayed: int
    in_flight: int | None
    parked: int | None
    dead: int


class LagPage(msgspec.Struct):
    """The lag of endpoints by id, and the sum of this page.

    Attributes:
        sum: over the endpoints of this page.
        next: cursor of the next page; None on the last one.
    """

    data: list[answers.EndpointLag]
    sum: Parts
    oldest_claimable_s: float | None
    next: str | None


for _kind in (Parts, LagPage):
    models.answer(_kind)


@router.get("/lag")
async def get_lag(of: access.ReaderOfExisting, at: forms.ListAt, endpoint: parameters.OnlyEndpoint = "") -> LagPage:
    """Show how far endpoints are behind, in parts that are never added up."""
    page = await of.service.lagging.lag(of.tenant, *at, endpoint)
    sums: dict[str, Any] = {
        name: lagging.total([getattr(each, name) for each in page.rows]) for name in Parts.__struct_fields__
    }
    oldest = max((s for each in page.rows if (s := each.oldest_claimable_s) is not None), default=None)
    return LagPage([*page.rows], Parts(**sums), oldest, page.next or None)


@router.get("/rate-limit-status")
async def get_rate_limit_status(
    of: access.ReaderOfExisting, at: forms.ListAt, endpoint: parameters.OnlyEndpoint = ""
) -> Page[answers.Rate]:
    """Show what the tenant and its endpoints may use, use, and are limited by now."""
    page = await of.service.lagging.rates(of.tenant, *at, endpoint)
    return Page([*page.rows], page.next or None)
