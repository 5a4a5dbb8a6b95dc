"""Refusals that several kinds of requests share."""

from __future__ import annotations

from emq.runtime import errors


def not_owner(group: str, epoch: int | None) -> errors.NotOwner:
    """Return the error for a request whose epoch is below the fence of its group."""
    return errors.NotOwner(f"group {group} has an owner with an epoch above {epoch}; stop consuming it")
