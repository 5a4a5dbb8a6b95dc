"""`/v1/tenants/{tenant}/messages`; `emq_web.fast_lane` serves the POST."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import fastapi
import msgspec
import pydantic

from emq_clients.push import answers
from emq_clients.requests import Page
from emq_push.records.accepted import Message
from emq_push.records.endpoints import endpoint_of
from emq_push.records.messages import Head, Selection
from emq_web import access, fast_lane, forms, models
from emq_web.scheduling import schemas

router = models.Router(prefix="/v1/tenants/{tenant}/messages", tags=["messages"])
publishing = fastapi.APIRouter(prefix="/v1/tenants/{tenant}/messages", tags=["messages"])
"""The POST of messages, which knows repeats by itself."""

MessageId = Annotated[str, fastapi.Path(max_length=128, pattern=r"^[A-Za-z0-9_.:-]+$")]
_encode = msgspec.json.Encoder().encode


models.answer(answers.StoredMessage, "MessageShown", without=("payload", "deliveries"))
WHOLE = models.answer(answers.StoredMessage, "MessageWhole")
models.answer(answers.Erased, "Erased")

BODY = schemas.body(fast_lane.BODIES.schema())
ACCEPTED: dict[int | str, dict[str, Any]] = {
    202: {
        "model": models.of(answers.Receipt) | models.of(answers.Receipts),
        "description": "accepted, and in the queues of the endpoints",
    }
}


def _shown(
    message: Head | Message, payload: msgspec.Raw | None = None, deliveries: Sequence[str] = ()
) -> answers.StoredMessage:
    rest = message.rest
    return forms.shown(
        answers.StoredMessage,
        message,
        key=rest.key,
        priority=rest.priority,
        headers=rest.headers or {},
        channels=rest.channels or (),
        due=forms.time_or_none(rest.due_us),
        erased=message.payload is None if isinstance(message, Message) else message.is_erased,
        payload=payload,
        deliveries=deliveries,
    )


@publishing.post("", status_code=202, response_model=None, responses=ACCEPTED, openapi_extra=BODY)
async def publish(tenant: access.TenantId, request: fastapi.Request, _: access.Bearer) -> fastapi.Response:
    """Publish one message, or up to 500 at once, to the tenant's endpoints.

    The answer comes once all messages are in the queues of their endpoints. Repeating a request with the same ids of
    your own, or with the same Idempotency-Key, is safe.
    """
    return await fast_lane.serve(request)


@router.get("")
async def list_messages(
    of: access.Reader,
    span: forms.Span,
    at: forms.ListAt,
    event_type: Annotated[str, fastapi.Query(max_length=128)] = "",
    key: Annotated[forms.Plain | None, fastapi.Query(max_length=256)] = None,
) -> Page[answers.StoredMessage]:
    """List messages, the latest first."""
    selection = Selection(span.since_us, span.until_us, event_type, key)
    page = await of.service.reading.messages(of.tenant, selection, *at)
    return forms.page(page, _shown)


@router.get("/{message}", response_model=None, responses={200: {"model": WHOLE}})
async def get_message(message: MessageId, of: access.Reader) -> fastapi.Response:
    """Show a message with its payload and the ids of its deliveries."""
    found = await of.service.reading.message(of.tenant, message)
    # The payload goes out as it came in: decoding it could change its numbers.
    payload = None if found.payload is None else msgspec.Raw(found.payload)
    deliveries = [f"{endpoint_of(topic)}:{found.id}" for topic in found.topics]
    return fastapi.Response(_encode(_shown(found, payload, deliveries)), media_type="application/json")


class Erasure(forms.Body):
    """Which payloads to erase."""

    key: forms.Plain = pydantic.Field(min_length=1, max_length=256, description="that of the messages")


@router.post(":erase")
async def erase(body: Erasure, of: access.Manager) -> answers.Erased:
    """Delete the payloads of all messages with a key, in the log, among delayed messages, retries and dead letters.

    Some seconds later the messages go with their deliveries and attempts. A message that waits in a queue for its first
    attempt is delivered, or fails, and is then gone. Safe to repeat.
    """
    return answers.Erased(payloads=await of.service.erasing.erase_key(of.tenant, body.key, of.actor))
