"""The answers of the operations of dead letters; `answers` has them, too."""

from __future__ import annotations

import datetime

import msgspec


class FailedAttempt(msgspec.Struct, frozen=True):
    """An attempt that failed."""

    at: datetime.datetime
    reason: str


class DeadLetter(msgspec.Struct, frozen=True):
    """A message that used up its attempts at an endpoint.

    Attributes:
        id: of its delivery.
        payload: its first 4096 bytes, as text.
        payload_bytes: of all of it.
    """

    id: str
    endpoint: str
    message: str
    priority: str
    attempts: int
    reason: str
    died: datetime.datetime
    history: list[FailedAttempt] = []
    payload: str = ""
    payload_bytes: int = 0


class EndpointDead(msgspec.Struct, frozen=True):
    """The dead letters of an endpoint."""

    endpoint: str
    dead: int


class DeadLetterCount(msgspec.Struct, frozen=True):
    """The dead letters of a tenant, and of its endpoints that have any."""

    dead: int
    endpoints: list[EndpointDead]


class ReplayedLetters(msgspec.Struct, frozen=True):
    """The dead letters that wait again, by the ids of their deliveries."""

    ids: list[str]


class Purged(msgspec.Struct, frozen=True):
    """What was thrown away.

    Attributes:
        more: True if another call may throw away more.
    """

    purged: int
    more: bool = False
