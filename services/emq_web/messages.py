"""`/v1/tenants/{tenant}/messages`; `emq_web.fast_lane` serves the POST."""

from __future__ import annotations

import datetime
from typing import Annotated, Any

import fastapi
import msgspec
import pydantic

from emq_push.records.accepted import Message
from emq_push.records.endpoints import endpoint_of
from emq_push.records.messages import Head, Selection
from emq_web import access, fast_lane, forms, published
from emq_web.tenants import TenantId

router = fastapi.APIRouter(prefix="/v1/tenants/{tenant}/messages", tags=["messages"])

MessageId = Annotated[str, fastapi.Path(max_length=128, pattern=r"^[A-Za-z0-9_.:-]+$")]
IdempotencyKey = Annotated[
    str, fastapi.Header(max_length=255, pattern=r"^[!-~]*$", description="of a request that may be repeated for 24 h")
]
_encode = msgspec.json.Encoder().encode


class MessageShown(forms.Shown):
    """A message without its payload."""

    id: str
    event_type: str
    key: str | None
    priority: str | None
    headers: dict[str, str]
    created: datetime.datetime
    due: datetime.datetime | None = pydantic.Field(description="when the first attempt may be made; null for at once")
    expires: datetime.datetime = pydantic.Field(description="when the service forgets the message")
    erased: bool = pydantic.Field(description="the payload is gone")


class MessageWhole(MessageShown):
    """A message."""

    payload: Any = pydantic.Field(description="null if it was erased")
    deliveries: list[str] = pydantic.Field(description="their ids")


class MessagePage(forms.Shown):
    """Messages, the latest first."""

    data: list[MessageShown]
    next: str | None = pydantic.Field(description="cursor of the next page; null on the last one")


class Erased(forms.Shown):
    """What was erased."""

    payloads: int


def _shown(message: Head | Message) -> dict[str, Any]:
    erased = message.payload is None if isinstance(message, Message) else message.is_erased
    return {
        "id": message.id,
        "event_type": message.event_type,
        "key": message.rest.key,
        "priority": message.rest.priority,
        "headers": message.rest.headers or {},
        "created": forms.time(message.created_us),
        "due": forms.time_or_none(message.rest.due_us),
        "expires": forms.time(message.expires_us),
        "erased": erased,
    }


@router.post("", status_code=202, response_model=None, responses=published.RESPONSES, openapi_extra=published.BODY)
async def publish(
    tenant: TenantId, request: fastapi.Request, _: access.Bearer, idempotency_key: IdempotencyKey = ""
) -> fastapi.Response:
    """Publish one message, or up to 500 at once, to the tenant's endpoints.

    The answer comes once all messages are in the queues of their endpoints. Repeating a request with the same ids of
    your own, or with the same Idempotency-Key, is safe.
    """
    return await fast_lane.serve(request)


@router.get("")
async def list_messages(
    tenant: TenantId,
    service: access.Service,
    _: access.Reader,
    span: forms.Span,
    limit: forms.Limit = forms.DEFAULT_LIMIT,
    cursor: forms.Cursor = "",
    event_type: Annotated[str, fastapi.Query(max_length=128)] = "",
    key: Annotated[forms.Plain | None, fastapi.Query(max_length=256)] = None,
) -> MessagePage:
    """List messages, the latest first."""
    selection = Selection(span.since_us, span.until_us, event_type, key)
    page = await service.messages.page(tenant, selection, limit, cursor)
    return MessagePage(data=[MessageShown(**_shown(head)) for head in page.rows], next=page.next or None)


@router.get("/{message}", response_model=None, responses={200: {"model": MessageWhole}})
async def get_message(
    tenant: TenantId, message: MessageId, service: access.Service, _: access.Reader
) -> fastapi.Response:
    """Show a message with its payload and the ids of its deliveries."""
    found = await service.messages.get(tenant, message)
    # The payload goes out as it came in: decoding it could change its numbers.
    payload = None if found.payload is None else msgspec.Raw(found.payload)
    deliveries = [f"{endpoint_of(topic)}:{found.id}" for topic in found.topics]
    content = _encode({**_shown(found), "payload": payload, "deliveries": deliveries})
    return fastapi.Response(content, media_type="application/json")


class Erasure(forms.Body):
    """Which payloads to erase."""

    key: forms.Plain = pydantic.Field(min_length=1, max_length=256, description="that of the messages")


@router.post(":erase")
async def erase(tenant: TenantId, body: Erasure, service: access.Service, caller: access.Manager) -> Erased:
    """Delete the payloads of all messages with a key, in the log, among delayed messages, retries and dead letters.

    Some seconds later the messages go with their deliveries and attempts. A message that waits in a queue for its first
    attempt is delivered, or fails, and is then gone. Safe to repeat.
    """
    return Erased(payloads=await service.erasing.erase_key(tenant, body.key, caller.actor))
