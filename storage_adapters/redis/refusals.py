"""Refusals that several kinds of requests are answered with."""

from __future__ import annotations

from emq import errors


def not_owner(group: str, epoch: int | None) -> errors.NotOwner:
    """For a request of a group whose fence stands above the request's epoch."""
    return errors.NotOwner(f"group {group} has an owner with an epoch above {epoch}; stop consuming it")
