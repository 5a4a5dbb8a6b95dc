"""Machines that sleep: a host that was asleep goes on with the catalog that it knew until it has read it again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

KNOWN_S = 2.0
"""By when every host that is awake knows of a change: it looks at the catalog each 0.8 s, and starts what it has taken
for one visit."""


class Sleep(NamedTuple):
    """Attributes:
    host: which life of which host slept.
    since, until: when, in true time.
    """

    host: str
    since: float
    until: float


def asleep_s(sleeps: Iterable[Sleep], host: str, since: float, until: float) -> float:
    """Return the seconds for which a host slept between two times."""
    mine = [sleep for sleep in sleeps if sleep.host == host]
    return sum(max(0.0, min(until, sleep.until) - max(since, sleep.since)) for sleep in mine)


def may_lag(sleeps: Iterable[Sleep], host: str, at: float) -> bool:
    """Return whether a host has woken so recently that it may not know of a change from before or from its sleep."""
    return any(sleep.host == host and sleep.since <= at <= sleep.until + KNOWN_S for sleep in sleeps)
