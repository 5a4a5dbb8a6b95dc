"""A notice, as a message carries it."""

from __future__ import annotations

import datetime
from typing import Literal

import msgspec

TOPIC = "emq.notices"
"""The topic of all notices. Where there is none, nobody watches."""

Kind = Literal[
    "topic.stuck",
    "topic.recovered",
    "topic.dead_letters",
    "host.gone",
    "host.back",
    "host.troubled",
    "host.well",
    "endpoint.disabled",
    "endpoint.enabled",
    "notices.test",
]


class Notice(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What happened.

    Attributes:
        type: also in the message's header `event-type`.
        text: one line for people, such as a chat shows it.
        subject: the topic, the host, or `TENANT.ENDPOINT`.
        tenant: of a push endpoint; empty for other topics.
        cause: of a topic, as `emq top` names it, such as "no_handler"; empty for others.
        reason: in the words of a handler, an endpoint or a server; may be empty.
        waiting, dead: of a topic, messages that wait, and dead letters.
        at: when it was noticed, in ISO 8601 and UTC.
        since: when it began; empty if that is not known.
    """

    type: Kind
    text: str
    subject: str = ""
    tenant: str = ""
    cause: str = ""
    reason: str = ""
    waiting: int = 0
    dead: int = 0
    at: str = ""
    since: str = ""


_decode = msgspec.json.Decoder(Notice).decode


def decode(payload: bytes) -> Notice:
    """Return the notice in a message's payload. Raises `ValueError`: it is none."""
    found: Notice = _decode(payload)
    return found


def time_of(seconds: float) -> str:
    """Return a time, in seconds since the epoch, as notices write it."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")
