"""Compares what the plan gives to a host with what the host consumes, apart from the loop that acquires groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from emq.allocation.bucket_membership import BucketMembership
from emq.host.assignments import COMPARE_S
from emq.host.ownership import Ownership

LATE_S = 15.0
"""Seconds, beyond a former owner's time to let go, after which a group that nobody consumes is late."""


class Unconsumed(NamedTuple):
    """The groups that the plan gives to a host and that it does not consume.

    Attributes:
        groups: their number.
        for_s: seconds for which the first of them has waited; 0.0 without any.
        group: the name of that group.
        why: the error that keeps groups from being acquired, if one is known.
    """

    groups: int = 0
    for_s: float = 0.0
    group: str = ""
    why: str = ""

    def __str__(self) -> str:
        if not self.groups:
            return "all groups of the plan are consumed"
        why = f": {self.why}" if self.why else ""
        return f"groups of the plan that are not consumed: {self.groups}, {self.group} for {self.for_s:.0f} s{why}"


class Consumption:
    """Notes since when groups of the plan are not consumed here.

    A group counts from the first look that finds it missing, whatever the cause: a former owner, a store, or a broken
    loop.

    Args:
        trouble: returns the error that keeps groups from being acquired; empty without one.
        drain_s: seconds for which a former owner may wait for its messages in flight.
    """

    def __init__(
        self, membership: BucketMembership, ownership: Ownership, trouble: Callable[[], str], drain_s: float
    ) -> None:
        self._membership = membership
        self._ownership = ownership
        self._trouble = trouble
        self._late_s = LATE_S + drain_s
        self._since: dict[str, float] = {}
        self._compared_s = float("-inf")

    def look(self) -> None:
        """Compare the groups, or only their numbers if these are equal; see `COMPARE_S`."""
        given, consumed = self._membership.given(), self._ownership.consumed.keys()
        now = asyncio.get_running_loop().time()
        if len(given) == len(consumed) and not self._since and now < self._compared_s + COMPARE_S:
            return
        self._compared_s = now
        if given <= consumed:
            self._since = {}
            return
        self._since = {group: self._since.get(group, now) for group in given if group not in consumed}

    def unconsumed(self) -> Unconsumed:
        """Return what the last look found. Cheap while all groups are consumed."""
        if not self._since:
            return Unconsumed()
        first = min(self._since, key=self._since.__getitem__)
        for_s = asyncio.get_running_loop().time() - self._since[first]
        return Unconsumed(len(self._since), for_s, first, self._trouble())

    def is_late(self, found: Unconsumed) -> bool:
        """Return whether a group has waited for longer than a move or a restart takes."""
        return found.for_s > self._late_s
