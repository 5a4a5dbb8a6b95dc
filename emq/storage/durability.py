"""Durability: how safe a message must be before its publish returns."""

from __future__ import annotations

import enum


class Durability(enum.StrEnum):
    """The state of a message for which `put` and `add` wait before they return."""

    ACCEPTED = "accepted"
    """The server has the message, in memory or in the operating system's cache."""
    REPLICATED = "replicated"
    """At least one replica has the message. A store that knows no replicas treats this as FSYNCED. A store that has
    none at the moment returns `OutcomeUnknown`, since it holds the message but cannot keep the promise."""
    FSYNCED = "fsynced"
    """The message is on disk."""
