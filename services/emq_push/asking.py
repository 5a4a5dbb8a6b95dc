"""Handshakes as messages: a host asks the endpoint, in the endpoint's queue and under its cap, and reports the answer.

The message has the question in a header that no caller of the API can give.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from emq.storage.message import Message

HEADER = "emq:handshake"
"""Has a colon, unlike the headers of callers."""
TTL_S = 3_600.0
"""Seconds after which a handshake expires, if the endpoint gets nothing before."""


class Question(msgspec.Struct, frozen=True):
    """What to ask an endpoint.

    Attributes:
        origin: for which sender.
        qps: wanted deliveries a second.
        actor: who asks, for the audit log.
    """

    origin: str
    qps: float
    actor: str


class Answer(msgspec.Struct, frozen=True):
    """An endpoint's answer.

    Attributes:
        topic: of the endpoint.
        url: that was asked.
        attributes: of the topic, with the agreement; None if it refused.
        rate_per_min: see `emq_push.handshake.Allowed`.
        reason: why it refused.
    """

    topic: str
    url: str
    question: Question
    attributes: dict[str, str] | None
    rate_per_min: int | None = None
    reason: str = ""


Told = Callable[[Answer], Awaitable[object]]
"""Keeps an endpoint's answer."""

_decode = msgspec.json.Decoder(Question).decode


def header_of(question: Question) -> dict[str, str]:
    """Return the headers of the message that has the question."""
    return {HEADER: msgspec.json.encode(question).decode()}


def question_of(message: Message) -> Question | None:
    """Return the question that a message has; None for a message that is a delivery."""
    text = message.headers.get(HEADER) if message.headers else None
    return None if text is None else _decode(text)
