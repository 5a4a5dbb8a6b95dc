"""The environments, whose data never meet: online and sandbox."""

from __future__ import annotations

import enum


class Environment(enum.StrEnum):
    """Two worlds that share nothing: production, and one to try a change in first."""

    ONLINE = "online"
    SANDBOX = "sandbox"
