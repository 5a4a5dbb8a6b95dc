"""`/v1/tenants/{tenant}/endpoints/{endpoint}/poll`: a tenant's consumer fetches messages, and acknowledges them."""

from __future__ import annotations

from typing import Annotated, cast

import fastapi
import msgspec
import pydantic

from emq_clients.push import answers
from emq_clients.requests import Page
from emq_push.records import cursors
from emq_push.service.polling import MOST_WAIT_S, Polled
from emq_web import access, forms, models
from emq_web.admission import TURN
from emq_web.limits import Turn

router = models.Router(prefix="/v1/tenants/{tenant}/endpoints/{endpoint}", tags=["polling"])

EndpointId = Annotated[str, fastapi.Path(max_length=128, description="the endpoint's id, such as ep_...")]
_encode = msgspec.json.Encoder().encode

models.answer(answers.PolledMessage, "PolledMessageShown")


def _shown(found: Polled, endpoint: str) -> answers.PolledMessage:
    message = found.message
    return forms.shown(
        answers.PolledMessage,
        message,
        cursor=found.cursor,
        delivery=f"{endpoint}:{message.id}",
        key=message.rest.key,
        headers=message.rest.headers or {},
        channels=message.rest.channels or (),
        payload=msgspec.Raw(message.payload or b"null"),
    )


@router.get("/poll", response_model=None, responses={200: {"model": models.of(Page[answers.PolledMessage])}})
async def poll(
    endpoint: EndpointId,
    of: access.Poller,
    request: fastapi.Request,
    after: Annotated[
        str, fastapi.Query(max_length=forms.MAX_CURSOR, description="cursor of the last message that you have")
    ] = "",
    limit: Annotated[int, fastapi.Query(ge=1, le=cursors.MOST, description="most messages")] = 100,
    wait_s: Annotated[
        float, fastapi.Query(ge=0, le=MOST_WAIT_S, description="seconds to wait for the first message")
    ] = 0,
) -> fastapi.Response:
    """Fetch the next messages of an endpoint with the URL `poll:`, in order. Changes nothing.

    Without `after`, the answer begins with the oldest message that is not acknowledged. It has fewer messages than
    `limit` if they are large. `next` is the cursor of the last one; null if none came.
    """
    turn = cast("Turn", request.scope[TURN])
    found = await of.service.polling.fetch(of.tenant, endpoint, after, limit, wait_s, turn.lent)
    # The payloads go out as they came in: decoding them could change their numbers.
    page = Page([_shown(each, endpoint) for each in found], found[-1].cursor if found else None)
    return fastapi.Response(_encode(page), media_type="application/json")


class Acknowledgement(forms.Body):
    """Which messages to acknowledge."""

    cursor: str = pydantic.Field(
        min_length=1,
        max_length=forms.MAX_CURSOR,
        description="of the last message that is done; all before it are, too",
    )


@router.post(":acknowledge")
async def acknowledge(endpoint: EndpointId, body: Acknowledgement, of: access.Poller) -> answers.Acknowledged:
    """Settle all messages up to a cursor: their deliveries are over, and no poll returns them again. Safe to repeat."""
    return answers.Acknowledged(messages=await of.service.polling.acknowledge(of.tenant, endpoint, body.cursor))
