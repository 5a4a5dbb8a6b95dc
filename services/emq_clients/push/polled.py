"""The answers of the operations of polling endpoints."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec


class PolledMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message in the log of a polling endpoint.

    Attributes:
        cursor: stands for this message and all before it.
        delivery: the id of its delivery.
        created: when it was accepted.
    """

    cursor: str
    delivery: str
    id: str
    event_type: str
    key: str | None = None
    headers: dict[str, str] = {}
    channels: list[str] = []
    created: datetime.datetime
    payload: Any = None


class Acknowledged(msgspec.Struct, frozen=True):
    """The number of messages that were acknowledged now."""

    messages: int
