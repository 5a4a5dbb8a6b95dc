"""`/v1/tenants/{tenant}/lag` and `/rate-limit-status`: how far endpoints are behind, and what limits them."""

from __future__ import annotations

from typing import Annotated

import fastapi
import pydantic

from emq_push.service import lagging
from emq_push.service.lagging import EndpointLag, RateStatus
from emq_web import access, forms, queries
from emq_web.deliveries import HoldShown, hold_shown
from emq_web.queries import Existing
from emq_web.tenants import TenantId

router = fastapi.APIRouter(prefix="/v1/tenants/{tenant}", tags=["lag and limits"])


class Parts(forms.Shown):
    """Deliveries that are not done, by what they wait for; each counts in one part. null: no host has reported."""

    ready: int = pydantic.Field(description="they may start now")
    held_by_rate: int | None = pydantic.Field(description="their endpoint or tenant uses its whole rate")
    delayed: int = pydantic.Field(description="they wait for their next attempt")
    in_flight: int | None = pydantic.Field(description="they wait for the endpoint's answer")
    parked: int | None = pydantic.Field(
        description="their endpoint is disabled, it or its tenant is paused, or its circuit is open"
    )
    dead: int = pydantic.Field(description="dead letters")


class EndpointLagShown(Parts):
    """The lag of an endpoint."""

    endpoint: str
    oldest_claimable_s: float | None = pydantic.Field(
        description="seconds since the oldest delivery that is due was accepted; null if none is due"
    )
    hold: HoldShown | None


class LagPage(forms.Shown):
    """The lag of endpoints by id, and the sum of this page."""

    data: list[EndpointLagShown]
    sum: Parts = pydantic.Field(description="over the endpoints of this page")
    oldest_claimable_s: float | None
    next: str | None = pydantic.Field(description="cursor of the next page; null on the last one")


class RateShown(forms.Shown):
    """What an endpoint, or the tenant as a whole, may use and uses."""

    endpoint: str | None = pydantic.Field(description="null for the tenant as a whole")
    cap_per_s: float = pydantic.Field(description="most deliveries started in a second")
    used_per_s: float | None = pydantic.Field(description="deliveries started a second now; null if not known")
    last_seconds: list[int] = pydantic.Field(
        description="starts in each of the last seconds, as far as hosts count them"
    )
    limited_by: HoldShown | None = pydantic.Field(description="null if nothing limits it now")


class RatePage(forms.Shown):
    """Limits of the tenant, on the first page, and of its endpoints by id."""

    data: list[RateShown]
    next: str | None = pydantic.Field(description="cursor of the next page; null on the last one")


_NAMES = ("ready", "held_by_rate", "delayed", "in_flight", "parked", "dead")


def _lag(found: EndpointLag) -> EndpointLagShown:
    counts = {name: getattr(found, name) for name in _NAMES}
    own = {"endpoint": found.endpoint, "oldest_claimable_s": found.oldest_s, "hold": hold_shown(found.hold)}
    return EndpointLagShown.model_validate({**counts, **own})


def _rate(found: RateStatus) -> RateShown:
    return RateShown(
        endpoint=found.name or None,
        cap_per_s=found.cap_per_s,
        used_per_s=found.used_per_s,
        last_seconds=list(found.last_s),
        limited_by=hold_shown(found.hold),
    )


@router.get("/lag")
async def get_lag(
    tenant: TenantId,
    _: access.Reader,
    __: Existing,
    service: access.Service,
    query: Annotated[queries.EndpointQuery, fastapi.Query()],
) -> LagPage:
    """Show how far endpoints are behind, in parts that are never added up."""
    page = await service.lagging.lag(tenant, query.limit, query.cursor, query.endpoint)
    sums = {name: lagging.total([getattr(each, name) for each in page.rows]) for name in _NAMES}
    oldest = max((each.oldest_s for each in page.rows if each.oldest_s is not None), default=None)
    return LagPage(
        data=[_lag(each) for each in page.rows],
        sum=Parts.model_validate(sums),
        oldest_claimable_s=oldest,
        next=page.next or None,
    )


@router.get("/rate-limit-status")
async def get_rate_limit_status(
    tenant: TenantId,
    _: access.Reader,
    __: Existing,
    service: access.Service,
    query: Annotated[queries.EndpointQuery, fastapi.Query()],
) -> RatePage:
    """Show what the tenant and its endpoints may use, use, and are limited by now."""
    page = await service.lagging.rates(tenant, query.limit, query.cursor, query.endpoint)
    return RatePage(data=[_rate(each) for each in page.rows], next=page.next or None)
