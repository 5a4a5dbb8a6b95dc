"""The groups that wait until their counters allow more starts."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections.abc import Callable, Iterable

from emq.groups.owned import OwnedGroup, OwnedTopic
from emq.runtime.clock import LONGEST_TIMER_S, Clock

GRID_S = 1 / 256
"""Distance of the times at which parked groups wake, in seconds: thousands of smooth counters share 256 wake-ups a
second. A power of two, so that whole seconds lie exactly on the grid."""

FEW = 64
"""Most wake-up times to keep for which no group is parked any more."""


class Parking:
    """Groups by the time at which their counters allow more; one timer serves all."""

    def __init__(self, clock: Clock, back: Callable[[Iterable[OwnedGroup]], None]) -> None:
        """Args:
        back: called with the groups whose time has come. They are not parked any more.
        """
        self._clock = clock
        self._back = back
        self._groups: dict[float, dict[OwnedGroup, None]] = {}
        self._beside: dict[OwnedTopic, dict[OwnedGroup, None]] = {}  # of topics that have other groups here
        self._deadlines: list[float] = []
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def park(self, group: OwnedGroup, until: float, now: float) -> None:
        """Park a group whose counter granted nothing at `now` until `until`, which is finite."""
        until = math.ceil(until / GRID_S) * GRID_S
        if until <= now:
            until += GRID_S  # rounded, the counter's next time is the present one, in which it granted nothing
        parked = self._groups.get(until)
        if parked is None:
            parked = self._groups[until] = {}
            heapq.heappush(self._deadlines, until)
            if self._deadlines[0] == until:
                self._set_timer()
        parked[group] = None
        group.parked_until = until
        if len(group.owner.groups) > 1:
            self._beside.setdefault(group.owner, {})[group] = None

    def take_out(self, group: OwnedGroup) -> bool:
        """Take the group out before its time; return whether it was parked."""
        parked = self._groups.get(group.parked_until)
        if parked is None or group not in parked:
            return False
        del parked[group]
        self._no_longer_beside(group)
        if not parked:
            del self._groups[group.parked_until]
            if len(self._deadlines) > 2 * len(self._groups) + FEW:
                # Topics that were closed for long and opened early leave many such times.
                self._deadlines = list(self._groups)
                heapq.heapify(self._deadlines)
        return True

    def bring_back(self, owner: OwnedTopic, most: int) -> None:
        """Bring back up to `most` groups of a topic, since another of its groups has left so many starts to them."""
        if (beside := self._beside.get(owner)) is not None:
            groups = list(itertools.islice(beside, most))
            for group in groups:
                self.take_out(group)
            self._back(groups)

    def stop(self) -> None:
        """Bring back no group from now on."""
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self) -> None:
        self.stop()
        delay = min(max(0.0, self._deadlines[0] - self._clock.now()), LONGEST_TIMER_S)
        self._timer = asyncio.get_running_loop().call_later(delay, self._unpark)

    def _unpark(self) -> None:
        self._timer = None
        now = self._clock.now()
        due: list[OwnedGroup] = []
        while self._deadlines and self._deadlines[0] <= now:
            due += self._groups.pop(heapq.heappop(self._deadlines), ())
        if self._deadlines:
            self._set_timer()
        if self._beside:
            for group in due:
                self._no_longer_beside(group)
        self._back(due)

    def _no_longer_beside(self, group: OwnedGroup) -> None:
        if (beside := self._beside.get(group.owner)) is not None:
            beside.pop(group, None)
            if not beside:
                del self._beside[group.owner]
