"""Finds the end of a run that its host did not record, because it was killed.

When another host owns the group, the dead host's lease is over, and nothing that it began goes on. So such a run ends
at the first takeover of its group after the dead host's last event. A host that recorded an event after the takeover
was alive then, so its runs get no such end.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable

from emq.trail.runs import CutShort

UNSAVED_US = 5_000_000
"""Microseconds before a host's abrupt end whose work may be in no checkpoint; see the setting `max_unsaved_s`."""

UNTOLD_US = 1_000_000
"""Microseconds before an abrupt end in which a delivery may have failed without a record of it. A host records a
failure when the store has confirmed it, and the killed host may have been waiting for the store."""


class Takeovers:
    """Knows how long a run without a recorded end may have gone on."""

    def __init__(self, cut_short: Collection[CutShort] = (), owned: Iterable[tuple[str, int]] = ()) -> None:
        """Args:
        cut_short: runs of killed hosts.
        owned: `<topic>/<group>` and the time at which a host began to own it, in any order.
        """
        self._cut_short = cut_short
        self._owned: dict[str, list[int]] = defaultdict(list)
        if cut_short:
            for place, time_us in owned:
                self._owned[place].append(time_us)
            for times in self._owned.values():
                times.sort()

    def over_us(self, source: str, place: str, time_us: int) -> float:
        """Return when a run that this source began in this group at this time is over; infinity if unknown."""
        for run in self._cut_short:
            if run.source == source and run.first_us <= time_us <= run.last_us:
                times = self._owned.get(place, ())
                i = bisect_right(times, run.last_us)
                return times[i] if i < len(times) else math.inf
        return math.inf
