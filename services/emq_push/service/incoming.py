"""A message as a caller gives it."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from emq.runtime import errors
from emq.storage.message import label_bytes
from emq.topics.model import MAX_DELAY_S
from emq_push.records.accepted import Rest
from emq_push.records.endpoints import END, Channel
from emq_push.records.event_types import Name, Version
from emq_push.service.refusals import Invalid

MOST = 500
"""Most messages of one request."""
MAX_PAYLOAD = 1 << 20
"""Most bytes of a payload: what a topic takes by default."""
MAX_HEADERS = 20

Id = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:-]{1,128}" + END)]
Key = Annotated[str, Meta(max_length=256, pattern=r"^[^\x00-\x1f\x7f]+" + END)]
HeaderName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9-]{1,64}" + END)]
HeaderValue = Annotated[str, Meta(max_length=1024, pattern=r"^[^\x00-\x1f\x7f]*" + END)]
Delay = Annotated[float, Meta(ge=0, le=MAX_DELAY_S)]
Ttl = Annotated[float, Meta(ge=0.001, le=MAX_DELAY_S)]


class Incoming(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A message.

    Attributes:
        payload: JSON, delivered byte by byte as it was given.
        id: the caller's own; None to have one made. A second message of the same id must be the same.
        key: messages of one key are delivered one at a time, in order.
        priority: one of the endpoints' names; an endpoint that does not have it takes its middle one.
        headers: small texts that travel with the payload.
        channels: endpoints with channels get the message only if they have one of these.
        delay_s: seconds to wait before the first attempt.
        at: when the first attempt may be made; instead of `delay_s`.
        ttl_s: seconds after which an undelivered message is dead.
        schema_version: the version of the event type's schema that the payload must fit, where payloads are checked;
            None for the newest.
    """

    event_type: Name
    payload: msgspec.Raw
    id: Id | None = None
    key: Key | None = None
    priority: Annotated[str, Meta(max_length=32, pattern=r"^[!-~]+" + END)] | None = None
    headers: Annotated[dict[HeaderName, HeaderValue], Meta(max_length=MAX_HEADERS)] | None = None
    channels: Annotated[tuple[Channel, ...], Meta(max_length=5)] | None = None
    delay_s: Delay | None = None
    at: Annotated[datetime.datetime, Meta(tz=True)] | None = None
    ttl_s: Ttl | None = None
    schema_version: Version | None = None

    @property
    def size(self) -> int:
        """Bytes of the payload, key and headers."""
        return len(self.payload) + label_bytes(self.key, self.headers)

    def due_us(self, now_us: int) -> int:
        """Return when the first attempt may be made; 0 for at once."""
        if self.delay_s is not None:
            return now_us + round(self.delay_s * 1e6) if self.delay_s else 0
        if self.at is None:
            return 0
        due_us = round(self.at.timestamp() * 1e6)
        return due_us if due_us > now_us else 0

    def rest(self, due_us: int) -> Rest:
        """Return the fields of the message's row beside its columns."""
        return Rest("", self.key, self.priority, self.headers or None, due_us, self.ttl_s, self.channels or None)


PLAIN = Rest()


class Many(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Messages of one request."""

    messages: Annotated[list[Incoming], Meta(min_length=1, max_length=MOST)]


class Request(msgspec.Struct, frozen=True):
    """Messages of one call.

    Attributes:
        key: the caller's Idempotency-Key; empty for none.
        digest: of the call, to tell another one with the same key.
        only: the topic of the only endpoint that gets the messages; empty for those that want them.
        is_single: the caller gave one message, not a list.
    """

    tenant: str
    messages: Sequence[Incoming]
    key: str
    digest: str
    only: str = ""
    is_single: bool = False

    def at(self, number: int) -> str:
        """Return the JSON pointer to a message in the caller's body."""
        return "" if self.is_single else f"/messages/{number}"


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("Number out of range")
    return value


decoded = msgspec.json.Decoder(float_hook=_float).decode
"""Decodes JSON of callers. Of its own, `msgspec` takes 20 microseconds for each `1e300`: seconds for a payload."""


def check(request: Request, now_us: int) -> None:
    """Raise `Invalid` for errors beyond a schema: payloads that are too large, times too far ahead, equal ids."""
    ids: set[str] = set()
    for number, message in enumerate(request.messages):
        at = request.at(number)
        if len(message.payload) > MAX_PAYLOAD:
            text = f"the payload has {len(message.payload):,} bytes; at most {MAX_PAYLOAD:,}"
            raise Invalid("payload_too_large", text, f"{at}/payload")
        if message.at is not None:
            _check_time(message, now_us, at)
        if message.id is not None:
            if message.id in ids:
                raise Invalid("invalid_request", f"id {message.id!r} is given twice in one request", f"{at}/id")
            ids.add(message.id)


def _check_time(message: Incoming, now_us: int, at: str) -> None:
    if message.delay_s is not None:
        raise Invalid("invalid_request", "give delay_s or at, not both", f"{at}/at")
    assert message.at is not None
    if message.at.timestamp() > now_us / 1e6 + MAX_DELAY_S:
        raise Invalid("invalid_request", "at is more than ten years ahead", f"{at}/at")


_PERMANENT = (errors.UnknownTopic, errors.InvalidMessage, errors.InvalidTopic)


def is_permanent(outcome: errors.EMQError) -> bool:
    """Return whether sending the message again would fail again: its endpoint was deleted."""
    return isinstance(outcome, _PERMANENT)
