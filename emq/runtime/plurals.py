"""Counted things in texts: `1 topic`, `2,000 topics`."""

from __future__ import annotations


def count(n: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun; `plural` if that is not the noun with an s."""
    return f"{n:,} {noun if n == 1 else plural or f'{noun}s'}"


def are(n: int) -> str:
    """Return `is` for one, else `are`."""
    return "is" if n == 1 else "are"


def were(n: int) -> str:
    """Return `was` for one, else `were`."""
    return "was" if n == 1 else "were"


def others(n: int) -> str:
    """Return `1 other`, `2 others`."""
    return count(n, "other")
