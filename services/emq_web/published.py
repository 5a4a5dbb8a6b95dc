"""Reads the body of a POST of messages, and describes it for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pydantic

from emq_push.service.incoming import Incoming, Many
from emq_web.one_or_many import OneOrMany

_bodies = OneOrMany(Incoming, Many, "messages")


def read(body: bytes) -> tuple[Sequence[Incoming], bool]:
    """Return the messages of a body, and whether it has a single one.

    Raises:
        Problem: the body is not JSON, or does not fit.
    """
    return _bodies.read(body)


BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": _bodies.schema()}}}
}


class ReceiptShown(pydantic.BaseModel):
    """A message that was accepted."""

    id: str
    deliveries: list[str] = pydantic.Field(description="ids of its deliveries, one for each endpoint that gets it")


class ReceiptsShown(pydantic.BaseModel):
    """Messages that were accepted, in the order of the request."""

    data: list[ReceiptShown]


RESPONSES: dict[int | str, dict[str, Any]] = {
    202: {"model": ReceiptShown | ReceiptsShown, "description": "accepted, and in the queues of the endpoints"}
}
