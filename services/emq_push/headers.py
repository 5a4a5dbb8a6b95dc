"""The headers of a delivery: those of Standard Webhooks, EMQ's own, and the message's under a prefix."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from urllib.parse import quote

from emq.calls import content_types
from emq.storage.message import Message
from emq_push import batches
from emq_push.attributes import EVENT_TYPE
from emq_push.endpoint import Endpoint
from emq_push.endpoint_values import MAX_HEADER_LENGTH
from emq_push.styles import Signable

MESSAGE_PREFIX = "emq-header-"
"""Prefix of the name of each of the message's own headers, so that they cannot pose as other headers."""

LINES = "application/x-ndjson"
"""Content type of a batch with one payload a line."""

_NAME_SAFE = "!#$&'*+^`|"
_VALUE_SAFE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


def of_request(endpoint: Endpoint, messages: Sequence[Message], timestamp_s: int) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of a request with one message, or a batch; see `of_delivery` and `of_batch`."""
    if endpoint.batch is None or (len(messages) == 1 and not batches.fits(endpoint, messages[0])):
        [message] = messages
        return message.payload, of_delivery(endpoint, message, timestamp_s)
    body = batches.body_of(endpoint, messages)
    return body, of_batch(endpoint, messages, body, timestamp_s)


def of_batch(endpoint: Endpoint, messages: Sequence[Message], body: bytes, timestamp_s: int) -> dict[str, str]:
    """Return the headers of a batch.

    `webhook-id` follows from the ids of the messages, which are in `emq-ids`, with commas between them, in the order of
    the payloads. The signature covers the whole body. Headers of the messages are left out.
    """
    assert endpoint.batch is not None
    ids = ",".join([quote(m.id, safe="") for m in messages])
    headers = {
        "Content-Type": endpoint.content_type if endpoint.batch.format == "json" else LINES,
        "webhook-id": f"batch_{hashlib.sha256(ids.encode()).hexdigest()[:32]}",
        "webhook-timestamp": str(timestamp_s),
        "emq-topic": _value(endpoint.topic),
        "emq-batch": str(len(messages)),
        "emq-ids": ids,
    }
    if endpoint.signed is not None:
        headers |= endpoint.signed(Signable(headers["webhook-id"], timestamp_s, body))
    headers.update(endpoint.headers)
    return headers


def of_delivery(endpoint: Endpoint, message: Message, timestamp_s: int) -> dict[str, str]:
    """Return the headers to send.

    `webhook-id` is the message's id, the same through all its retries, so that the receiver can drop a repeat.
    `webhook-timestamp` is the time of this attempt. `webhook-signature`, or what the endpoint's style has in its place,
    has a signature for each secret of the endpoint.
    In the names and values of topics, priorities and message headers, characters that HTTP cannot carry (and the
    percent sign) arrive as percent-encoded UTF-8. `Content-Type` is that of the message, if the message has one that
    HTTP can carry, else that of the endpoint.

    Args:
        endpoint: the endpoint that gets the message.
        message: the message to send.
        timestamp_s: time of the attempt, seconds since the epoch.
    """
    priorities = endpoint.priorities
    priority = priorities[message.priority] if message.priority < len(priorities) else str(message.priority)
    headers = {
        "Content-Type": _content_type(message) or endpoint.content_type,
        "webhook-id": _value(message.id),
        "webhook-timestamp": str(timestamp_s),
        "emq-topic": _value(endpoint.topic),
        "emq-attempt": str(message.attempt),
        "emq-priority": _value(priority),
    }
    if endpoint.signed is not None:
        event = _value(message.headers.get(EVENT_TYPE, "")) if message.headers else ""
        headers |= endpoint.signed(Signable(headers["webhook-id"], timestamp_s, message.payload, event))
    if endpoint.headers:
        headers.update(endpoint.headers)
    if message.headers:
        for name, value in message.headers.items():
            headers[MESSAGE_PREFIX + quote(name, safe=_NAME_SAFE)] = _value(value)
    return headers


def _content_type(message: Message) -> str | None:
    own = content_types.given(message.headers)
    return own if own and len(own) <= MAX_HEADER_LENGTH and _is_sendable(own) else None


def _is_sendable(text: str) -> bool:
    return text.isascii() and text.isprintable() and text == text.strip()


def _value(text: str) -> str:
    if _is_sendable(text) and "%" not in text:
        return text
    stripped = text.strip(" ")
    before = len(text) - len(text.lstrip(" "))
    after = len(text) - before - len(stripped)
    # Spaces at the ends would be dropped on the way.
    return "%20" * before + quote(stripped, safe=_VALUE_SAFE) + "%20" * after
