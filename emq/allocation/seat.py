"""The seat of a host in a cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable

from emq.allocation.tree import protocol
from emq.clock import Clock


@dataclasses.dataclass(frozen=True, slots=True)
class Seat:
    """A host's place in its cluster: its name, the tree in which it meets the others, and its clock.

    Attributes:
        tree: the coordination tree in which the hosts meet.
        environment: the environment whose groups the hosts share.
        host: a name that is unique in the cluster.
        next_generation: takes the least number that it may return; returns a number above all numbers that it
            returned before.
        clock: the host's clock.
    """

    tree: protocol.Tree
    environment: str
    host: str
    next_generation: Callable[[int], Awaitable[int]]
    clock: Clock
