"""Reads the body of a POST of messages, and describes it for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from emq_clients.push import answers
from emq_push.service.incoming import Incoming, Many
from emq_web import models
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


RESPONSES: dict[int | str, dict[str, Any]] = {
    202: {
        "model": models.of(answers.Receipt) | models.of(answers.Receipts),
        "description": "accepted, and in the queues of the endpoints",
    }
}
