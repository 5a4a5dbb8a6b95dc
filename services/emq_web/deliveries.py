"""`/v1/tenants/{tenant}/deliveries`: each message at each endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import fastapi
import pydantic

from emq_clients.push import answers
from emq_clients.requests import Page
from emq_push.records.attempts import Attempt
from emq_push.records.cursors import Page as PageOf
from emq_push.service.reading import DeliveryFilter, ShownDelivery
from emq_push.service.states import State
from emq_web import access, forms, models, parameters
from emq_web.parameters import DeliveryId

router = models.Router(prefix="/v1/tenants/{tenant}", tags=["deliveries"])

RECENT = 20
"""Most attempts that a single delivery shows; all are below `/attempts`."""

LONGEST_ANSWER = 256

models.answer(answers.Delivery, "DeliveryShown", without=("latest_attempts",))
WITH_ATTEMPTS = models.answer(answers.Delivery, "DeliveryWithAttempts")


class ResendBody(forms.Body):
    """How to send a delivery again."""

    priority: str | None = pydantic.Field(
        None, max_length=32, pattern=r"^[!-~]*$", description="one of the endpoint's; null for its own"
    )


def shown(found: ShownDelivery, attempts: Sequence[answers.Attempt] = ()) -> answers.Delivery:
    d = found.delivery
    return forms.shown(
        answers.Delivery,
        d,
        state=found.state,
        status=d.status or None,
        next_attempt=forms.time_or_none(d.next_us),
        hold=found.hold.shown,
        latest_attempts=attempts,
    )


def _attempts(page: PageOf[Attempt], of: access.Visit) -> Page[answers.Attempt]:
    """Return attempts as answers show them; the host only to an admin."""

    def shown(attempt: Attempt) -> answers.Attempt:
        return forms.shown(
            answers.Attempt,
            attempt,
            delivery=f"{attempt.topic.removeprefix(f'{of.tenant}.')}:{attempt.message}",
            took_ms=attempt.took_us / 1000,
            status=attempt.status or None,
            answer=attempt.answer[:LONGEST_ANSWER],
            host=attempt.host if of.caller.key.role == "admin" else None,
        )

    return forms.page(page, shown)


@router.get("/deliveries")
async def list_deliveries(
    of: access.ReaderOfExisting,
    at: forms.ListAt,
    span: forms.Span,
    state: Annotated[State | None, fastapi.Query(description="as shown")] = None,
    endpoint: parameters.EndpointId = "",
    event_type: Annotated[
        list[parameters.EventType], fastapi.Query(max_length=20, description="a trailing * fits any ending")
    ] = [],  # noqa: B006
    message: Annotated[parameters.Text, fastapi.Query(description="id of a message")] = "",
    status: Annotated[int | None, fastapi.Query(ge=100, le=599, description="of the last answer")] = None,
    key: Annotated[forms.Plain, fastapi.Query(max_length=256, description="of the message")] = "",
) -> Page[answers.Delivery]:
    """List deliveries, the newest first. A filtered page may have fewer entries than `limit`, although more follow."""
    wanted = DeliveryFilter(state, endpoint, tuple(event_type), *span, message, status or 0, key)
    return forms.page(await of.service.reading.deliveries(of.tenant, wanted, *at), shown)


@router.get("/deliveries/{delivery}", response_model=WITH_ATTEMPTS)
async def get_delivery(delivery: DeliveryId, of: access.ReaderOfExisting) -> answers.Delivery:
    """Show a delivery with its latest attempts."""
    found = await of.service.reading.delivery(of.tenant, delivery)
    return shown(found, _attempts(await of.service.reading.attempts(of.tenant, delivery, RECENT), of).data)


@router.get("/deliveries/{delivery}/attempts")
async def list_attempts(delivery: DeliveryId, of: access.ReaderOfExisting, at: forms.ListAt) -> Page[answers.Attempt]:
    """List the attempts of a delivery, the newest first."""
    return _attempts(await of.service.reading.attempts(of.tenant, delivery, *at), of)


@router.get("/endpoints/{endpoint}/attempts")
async def list_attempts_at(endpoint: str, of: access.ReaderOfExisting, at: forms.ListAt) -> Page[answers.Attempt]:
    """List the attempts at an endpoint, the newest first."""
    return _attempts(await of.service.reading.attempts_at(of.tenant, endpoint, *at), of)


@router.post("/deliveries/{delivery}:resend", status_code=202)
async def resend_delivery(
    delivery: DeliveryId, of: access.ManagerOfExisting, body: ResendBody | None = None
) -> answers.Delivery:
    """Send a delivery that is over once more, under the same `webhook-id`."""
    priority = None if body is None else body.priority
    return shown(await of.service.resending.resend(of.tenant, delivery, of.actor, priority))


@router.post("/deliveries/{delivery}:cancel")
async def cancel_delivery(delivery: DeliveryId, of: access.ManagerOfExisting) -> answers.Delivery:
    """Take back a delivery that waits for its next attempt. It is either taken back or sent, never both."""
    return shown(await of.service.resending.cancel(of.tenant, delivery, of.actor))
