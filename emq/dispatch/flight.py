"""The messages in flight on a host, and the topics that wait for a place among them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from emq.groups.owned import OwnedGroup, OwnedTopic
from emq.quota.places import sharing

MAX_IN_FLIGHT = 20_000
"""Most messages of one host, over all topics, that are started and not settled."""

LOOK_AGAIN_S = 0.25
LOOK_AGAIN = 64
"""Number of waiting topics to look at again every `LOOK_AGAIN_S` seconds, even if no place became free."""


class Flight:
    """Counts the messages in flight, with their bytes, by group, by topic and for the host.

    All topics share `most` places, see `emq.quota.places.sharing`. A topic that finds no place waits until enough
    places are free. It also tries again every `LOOK_AGAIN_S`, because `emq.quota.places.sharing` forgets a topic's
    slowness in time.

    Attributes:
        count: messages in flight on the host.
        crowd: the topics that wait for a place.
    """

    __slots__ = ("_again", "_called", "_looking", "_most", "_shares", "_stopped", "count", "crowd")

    def __init__(self, most: int, again: Callable[[OwnedTopic], None]) -> None:
        """Args:
        again: called with a topic that has waited and may find a place now.
        """
        self._most = most
        self._shares = sharing.Shares(most)
        self._again = again
        self.crowd: sharing.Crowd[OwnedTopic] = sharing.Crowd()
        self._looking: asyncio.TimerHandle | None = None
        self._stopped = False
        self._called = 0  # topics that were told to look again and have not asked for places yet
        self.count = 0

    @property
    def waiting(self) -> int:
        """The number of topics that wait for a place."""
        return len(self.crowd)

    def enter(self, group: OwnedGroup, n: int, size: int) -> None:
        """`n` messages of the group are in flight now, of `size` bytes together."""
        owner = group.owner
        owner.in_flight += n
        group.in_flight += n
        self.count += n
        if size:
            owner.flying += size
            group.gauge.flying += size

    def leave(self, group: OwnedGroup, n: int, size: int) -> None:
        """`n` messages of the group are not in flight any more; `size`: their bytes that `weigh` did not take off."""
        owner = group.owner
        owner.in_flight -= n
        group.in_flight -= n
        self.count -= n
        owner.flying -= size
        group.gauge.flying -= size

    def weigh(self, group: OwnedGroup, size: int) -> None:
        """Add the bytes of messages that have their places already; below 0 for messages that keep only their places,
        since they just wait for the store to note their success."""
        group.owner.flying += size
        group.gauge.flying += size

    def places(self, owner: OwnedTopic, wanted: int, now: float) -> int:
        """Return how many of the `wanted` places the topic may take; at 0, the topic waits for places."""
        held, used, pace = owner.in_flight, self.count, owner.pace
        room = wanted
        if self._called:
            self._called -= 1
        short = sharing.is_short(self._most, used)
        if short or pace.proven < wanted:
            room, full_at = self._shares.room(pace, used, held, int(now * 1e6))
            if pace.known and not owner.waits and owner.batch_size == 1 and room > 0:
                return wanted  # the first handler that waits ends the visit, so at most one place is taken
            if short:
                wanted = min(wanted, sharing.need(owner.topic.qps, pace.took_s) - held)
            if wanted > 0 >= room:
                self.crowd.wait(owner, sharing.used_at_most(full_at, held))
                if self._looking is None:
                    self._looking = asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self._look_again)
                return 0
        return min(room, wanted)  # a topic that needs no more places waits for its own messages to end

    def admit(self) -> None:
        """Look again at the topics that have enough free places now. Call this after messages have left.

        A topic asks for places only when its group's turn comes. Until then, a place is kept for it, so that a free
        place does not call many topics.
        """
        while self.count + self._called <= self.crowd.wakes_at and self.count + self._called < self._most:
            self._called += 1
            self._again(self.crowd.first())

    def stop(self) -> None:
        """Stop looking at topics again every `LOOK_AGAIN_S`."""
        self._stopped = True
        if self._looking is not None:
            self._looking.cancel()

    def _look_again(self) -> None:
        self._looking = None
        self._called = 0  # a topic that has nothing to start any more does not ask
        try:
            for _ in range(min(LOOK_AGAIN, len(self.crowd))):
                self._again(self.crowd.longest())
        finally:
            if not self._stopped and self.crowd and self._looking is None:
                self._looking = asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self._look_again)
