"""What a producer waits for."""

from __future__ import annotations

import enum


class Durability(enum.StrEnum):
    """What `put` and `add` have waited for when they return."""

    ACCEPTED = "accepted"
    """The server has it (in memory, or the operating system's cache)."""
    REPLICATED = "replicated"
    """At least one replica has it. A store that knows no replicas treats this as FSYNCED; one that has none at the
    moment answers `OutcomeUnknown`, since it holds the message but cannot keep the promise."""
    FSYNCED = "fsynced"
    """It is on disk."""
