"""When a run was over whose end is in no trail, because its host was killed before it wrote the end down.

A host that is dead runs nothing. By its last event it was alive; by when another life owns the group, its lease is
over, and nothing that it began goes on. So such a run is over at the first takeover of its group that follows the dead
host's last event. A host that wrote anything after the takeover was alive then, and is excused by nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import NamedTuple

UNSAVED_US = 5_000_000
"""What an owner did so shortly before it ended abruptly may be in no checkpoint; see `max_unsaved_s`."""


class CutShort(NamedTuple):
    """A trail of one source that ends without having been closed.

    Attributes:
        first_us, last_us: of its events, microseconds since the epoch.
    """

    source: str
    first_us: int
    last_us: int


class Takeovers:
    """Tells until when a run can have gone on of which no end is known."""

    def __init__(self, cut_short: Collection[CutShort] = (), owned: Iterable[tuple[str, int]] = ()) -> None:
        """Args:
        owned: `<topic>/<group>` and the time at which somebody began to own it, in any order.
        """
        self._cut_short = cut_short
        self._owned: dict[str, list[int]] = defaultdict(list)
        if cut_short:
            for place, time_us in owned:
                self._owned[place].append(time_us)
            for times in self._owned.values():
                times.sort()

    def over_us(self, source: str, place: str, time_us: int) -> float:
        """By when a run is over that this source began in this group at this time; infinity if nothing tells."""
        for run in self._cut_short:
            if run.source == source and run.first_us <= time_us <= run.last_us:
                times = self._owned.get(place, ())
                i = bisect_right(times, run.last_us)
                return times[i] if i < len(times) else math.inf
        return math.inf
