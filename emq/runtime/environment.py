"""The environments, whose data never meet: online and sandbox."""

from __future__ import annotations

import enum


class Environment(enum.StrEnum):
    """Two worlds that share nothing: production, and one for trials."""

    ONLINE = "online"
    SANDBOX = "sandbox"
