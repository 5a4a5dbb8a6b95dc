"""`/v1/tenants/{tenant}/deliveries`: each message at each endpoint."""

from __future__ import annotations

import datetime
from typing import Annotated

import fastapi
import pydantic

from emq_push.records.attempts import Attempt
from emq_push.service.reading import DeliveryFilter, ShownDelivery
from emq_push.service.states import Hold, State
from emq_web import access, forms, queries
from emq_web.queries import DeliveryId, Existing
from emq_web.tenants import TenantId

router = fastapi.APIRouter(prefix="/v1/tenants/{tenant}", tags=["deliveries"])

RECENT = 20
"""Most attempts that a single delivery shows; all are below `/attempts`."""

LONGEST_ANSWER = 256


class HoldShown(forms.Shown):
    """What holds an endpoint now."""

    name: str = pydantic.Field(
        description="disabled, paused, circuit_open, throttled, endpoint_cap, tenant_cap, gone, or unknown: no host "
        "has reported lately"
    )
    reason: str
    until: datetime.datetime | None = pydantic.Field(description="when the hold ends at the latest; null if not known")
    rate_per_s: float | None = pydantic.Field(description="deliveries a second that are left; null if not limited")


class DeliveryShown(forms.Shown):
    """A message on its way to one endpoint."""

    id: str
    endpoint: str
    message: str
    event_type: str
    state: State
    attempts: int = pydantic.Field(description="attempts made")
    status: int | None = pydantic.Field(description="of the last answer; null without one")
    reason: str = pydantic.Field(description="why the last attempt failed")
    created: datetime.datetime
    next_attempt: datetime.datetime | None = pydantic.Field(description="null if it is due, or over")
    settled: datetime.datetime | None = pydantic.Field(description="when it was delivered, died or was cancelled")
    hold: HoldShown | None = pydantic.Field(description="null if nothing holds its endpoint, or if it is over")


class DeliveryPage(forms.Shown):
    """Deliveries, the newest first. A filtered page may have fewer entries than `limit`, although more follow."""

    data: list[DeliveryShown]
    next: str | None = pydantic.Field(description="cursor of the next page; null on the last one")


class AttemptShown(forms.Shown):
    """An attempt to deliver a message."""

    delivery: str
    number: int = pydantic.Field(description="from 1; begins again when a message is sent again")
    started: datetime.datetime
    took_ms: float
    status: int | None = pydantic.Field(description="of the answer; null without one")
    outcome: str = pydantic.Field(description="delivered, retry, parked or dead")
    reason: str
    answer: str = pydantic.Field(description="the beginning of the answer's body, with secrets masked")
    host: str | None = pydantic.Field(description="the host that made it; for admin keys")


class AttemptPage(forms.Shown):
    """Attempts, the newest first."""

    data: list[AttemptShown]
    next: str | None = pydantic.Field(description="cursor of the next page; null on the last one")


class DeliveryWithAttempts(DeliveryShown):
    """A delivery and its latest attempts, the newest first."""

    latest_attempts: list[AttemptShown]


class DeliveryQuery(queries.ListQuery):
    """Which deliveries to list."""

    state: State | None = pydantic.Field(None, description="as shown")
    endpoint: queries.EndpointId = ""
    event_type: list[queries.EventType] = pydantic.Field([], max_length=20, description="a trailing * fits any ending")
    created_gte: forms.Moment | None = pydantic.Field(None, alias="created[gte]")
    created_lt: forms.Moment | None = pydantic.Field(None, alias="created[lt]")
    message: queries.Text = pydantic.Field("", description="id of a message")

    @property
    def wanted(self) -> DeliveryFilter:
        return DeliveryFilter(
            self.state,
            self.endpoint,
            tuple(self.event_type),
            queries.us(self.created_gte, 0),
            queries.us(self.created_lt, 1 << 62),
            self.message,
        )


class ResendBody(forms.Body):
    """How to send a delivery again."""

    priority: str | None = pydantic.Field(
        None, max_length=32, pattern=r"^[!-~]*$", description="one of the endpoint's; null for its own"
    )


def hold_shown(hold: Hold) -> HoldShown | None:
    if hold.name == "none":
        return None
    until = forms.time_or_none(round(hold.until * 1e6)) if 0 < hold.until < queries.FAR_S else None
    return HoldShown(name=hold.name, reason=hold.reason, until=until, rate_per_s=hold.rate)


def values(found: ShownDelivery) -> dict[str, object]:
    d = found.delivery
    return {
        "id": d.id,
        "endpoint": d.endpoint,
        "message": d.message,
        "event_type": d.event_type,
        "state": found.state,
        "attempts": d.attempts,
        "status": d.status or None,
        "reason": d.reason,
        "created": forms.time(d.created_us),
        "next_attempt": forms.time_or_none(d.next_us),
        "settled": forms.time_or_none(d.settled_us),
        "hold": hold_shown(found.hold),
    }


def shown(found: ShownDelivery) -> DeliveryShown:
    return DeliveryShown.model_validate(values(found))


def attempt_shown(tenant: str, attempt: Attempt, caller: access.Caller) -> AttemptShown:
    endpoint = attempt.topic.removeprefix(f"{tenant}.")
    return AttemptShown(
        delivery=f"{endpoint}:{attempt.message}",
        number=attempt.number,
        started=forms.time(attempt.started_us),
        took_ms=attempt.took_us / 1000,
        status=attempt.status or None,
        outcome=attempt.outcome,
        reason=attempt.reason,
        answer=attempt.answer[:LONGEST_ANSWER],
        host=attempt.host if caller.key.role == "admin" else None,
    )


@router.get("/deliveries")
async def list_deliveries(
    tenant: TenantId,
    _: access.Reader,
    __: Existing,
    service: access.Service,
    query: Annotated[DeliveryQuery, fastapi.Query()],
) -> DeliveryPage:
    """List deliveries, the newest first."""
    page = await service.reading.deliveries(tenant, query.wanted, query.limit, query.cursor)
    return DeliveryPage(data=[shown(each) for each in page.rows], next=page.next or None)


@router.get("/deliveries/{delivery}")
async def get_delivery(
    tenant: TenantId, delivery: DeliveryId, caller: access.Reader, __: Existing, service: access.Service
) -> DeliveryWithAttempts:
    """Show a delivery with its latest attempts."""
    found = await service.reading.delivery(tenant, delivery)
    attempts = await service.reading.attempts(tenant, delivery, RECENT)
    latest = [attempt_shown(tenant, each, caller) for each in attempts.rows]
    return DeliveryWithAttempts.model_validate({**values(found), "latest_attempts": latest})


@router.get("/deliveries/{delivery}/attempts")
async def list_attempts(
    tenant: TenantId,
    delivery: DeliveryId,
    caller: access.Reader,
    __: Existing,
    service: access.Service,
    query: Annotated[queries.ListQuery, fastapi.Query()],
) -> AttemptPage:
    """List the attempts of a delivery, the newest first."""
    page = await service.reading.attempts(tenant, delivery, query.limit, query.cursor)
    return AttemptPage(data=[attempt_shown(tenant, each, caller) for each in page.rows], next=page.next or None)


@router.get("/endpoints/{endpoint}/attempts")
async def list_attempts_at(
    tenant: TenantId,
    endpoint: str,
    caller: access.Reader,
    __: Existing,
    service: access.Service,
    query: Annotated[queries.ListQuery, fastapi.Query()],
) -> AttemptPage:
    """List the attempts at an endpoint, the newest first."""
    page = await service.reading.attempts_at(tenant, endpoint, query.limit, query.cursor)
    return AttemptPage(data=[attempt_shown(tenant, each, caller) for each in page.rows], next=page.next or None)


@router.post("/deliveries/{delivery}:resend", status_code=202)
async def resend_delivery(
    tenant: TenantId,
    delivery: DeliveryId,
    caller: access.Manager,
    __: Existing,
    service: access.Service,
    body: ResendBody | None = None,
) -> DeliveryShown:
    """Send a delivery that is over once more, under the same `webhook-id`."""
    priority = None if body is None else body.priority
    return shown(await service.resending.resend(tenant, delivery, caller.actor, priority))


@router.post("/deliveries/{delivery}:cancel")
async def cancel_delivery(
    tenant: TenantId, delivery: DeliveryId, caller: access.Manager, __: Existing, service: access.Service
) -> DeliveryShown:
    """Take back a delivery that waits for its next attempt. It is either taken back or sent, never both."""
    return shown(await service.resending.cancel(tenant, delivery, caller.actor))
