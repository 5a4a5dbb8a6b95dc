"""The ring: the order in which a group asks hosts for a place."""

from __future__ import annotations

import bisect
import hashlib
import math
from collections.abc import Container, Iterator, Mapping

import uhashring

POINTS = 64
"""Number of points of a host of ordinary weight. Few suffice, since the bounds even out the loads."""

Point = tuple[int, str]


class Ring:
    """A consistent hashing ring (Karger et al. 1997): points of hosts on a circle, around which a group goes clockwise.

    The planner builds a new ring each time, since a changed ring can keep routing to hosts that are gone.

    Args:
        weights: host to its weight, above 0 and finite; a host has points in proportion.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        # A power of two, so that the points of others stay where they are when the largest weight changes a little.
        unit = 2.0 ** (math.frexp(max(weights.values()))[1] - 1)
        nodes = {host: {"vnodes": max(1, round(POINTS * weights[host] / unit))} for host in sorted(weights)}
        self._set(uhashring.HashRing(nodes=nodes, hash_fn=place).get_points())

    def _set(self, points: list[Point]) -> None:
        self._places = [at for at, _ in points]
        self._hosts = [host for _, host in points]
        self._own: dict[str, list[int]] = {host: [] for host in self._hosts}
        for at, host in points:
            self._own[host].append(at)

    def only(self, hosts: Container[str]) -> Ring:
        """Return a ring with the points of `hosts` only; it may be empty."""
        part = Ring.__new__(Ring)
        part._set([point for point in zip(self._places, self._hosts, strict=True) if point[1] in hosts])
        return part

    def way(self, group: str) -> Iterator[str]:
        """Yield each host once, in the order in which a group meets the hosts."""
        start = bisect.bisect(self._places, place(group))
        met: set[str] = set()
        for i in range(start - len(self._hosts), start):  # negative indices lead from the start to the end
            host = self._hosts[i]
            if host not in met:
                met.add(host)
                yield host
                if len(met) == len(self._own):
                    return

    def distance(self, group: str, host: str) -> int:
        """Return the distance from the group clockwise to the host; the whole circle is 2 to the power of 64."""
        own, at = self._own[host], place(group)
        return (own[bisect.bisect(own, at) % len(own)] - at) % CIRCLE


CIRCLE = 1 << 64


def place(name: str) -> int:
    """Return the place of a name on the circle, from 0 to 2**64 - 1; the same in every process."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")
