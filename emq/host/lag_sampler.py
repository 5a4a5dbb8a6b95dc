"""The lag loop of a host with metrics: counts the messages of its groups that are not done, by what they wait for."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Sequence

from emq import errors
from emq.clock import Clock
from emq.groups.owned import OwnedGroup
from emq.host.ownership import Ownership
from emq.storage.answers import FAILURES, of_each
from emq.storage.store import Store
from emq.topics.model import State

LAG_S = 10.0
"""Seconds between the end of a look and the beginning of the next one."""

GROUPS_AT_ONCE = 300
"""Groups in one step: at most three calls to the store, and about a millisecond of this process."""

STEP_S = 0.1
"""Seconds between two steps, so that a host with many groups spreads its questions."""


class Part(enum.StrEnum):
    """A part of the lag, named for the thing that its messages wait for; each message counts in one part."""

    READY = "ready"
    """Nothing: it may start now."""
    HELD_BY_RATE = "held_by_rate"
    """Its group has used its starts of this second."""
    HELD_BY_KEY = "held_by_key"
    """Another message of its key runs, or its key moves between groups."""
    HELD_BY_ROOM = "held_by_room"
    """As many messages of its topic are in flight as may be, or no consumer asks its receiver for more."""
    PARKED = "parked"
    """Its topic is paused, has no handler here, or its handler has closed the topic on this host for a while."""
    DELAYED = "delayed"
    """Its time has not come: delayed messages, retries, schedules."""
    DEAD = "dead"
    """It is a dead letter."""


class LagSampler:
    """Looks at the groups of a host in turn, and remembers the counts of the last whole look.

    The look asks the store only for what the host does not know: the ends of queues from which it has not read
    everything, and the sizes of lanes and slots. The cost is at most one call of each kind for 300 groups in
    `STEP_S`, and only hosts with metrics have this loop.

    Attributes:
        counts: messages of the host's groups by part, but for those in flight.
        sampled_at: when the last whole look ended, by the host's clock; None before the first.
        unreachable: the error of the store in the present look or the last one; None without an error.
    """

    def __init__(self, ownership: Ownership, store: Store, clock: Clock) -> None:
        self._ownership = ownership
        self._store = store
        self._clock = clock
        self.counts: dict[Part, int] = dict.fromkeys(Part, 0)
        self.sampled_at: float | None = None
        self.unreachable: str | None = None

    async def sample(self) -> None:
        """Look at all groups again and again. Ends by cancellation."""
        while True:
            await self.look()
            await asyncio.sleep(LAG_S)

    async def look(self) -> None:
        """Look at all groups once. If the store does not answer for some of them, the former counts stay."""
        counts: dict[Part, int] = dict.fromkeys(Part, 0)
        groups = list(self._ownership.groups.values())
        failure: errors.EMQError | None = None
        for start in range(0, len(groups), GROUPS_AT_ONCE):
            if start:
                await asyncio.sleep(STEP_S)
            failure = await self._add(counts, groups[start : start + GROUPS_AT_ONCE]) or failure
        self.unreachable = None if failure is None else str(failure)
        if failure is None:
            self.counts, self.sampled_at = counts, self._clock.now()

    async def _add(self, counts: dict[Part, int], groups: Sequence[OwnedGroup]) -> errors.EMQError | None:
        """Add the messages of some groups; return the error of one that the store could not serve, or None."""
        now = self._clock.now()
        places = [_waits_for(group, now) for group in groups]
        unread = []
        for group, place in zip(groups, places, strict=True):
            counts[place] += group.buffered
            counts[Part.HELD_BY_KEY] += group.held
            unread += [(queue.name, queue.position, place) for queue in group.queues if queue.more]
        sorted_groups = [
            (group.slot.slot, place) for group, place in zip(groups, places, strict=True) if group.slot is not None
        ]
        failure: errors.EMQError | None = None
        if unread:
            bounds = await of_each(self._store.log.bounds([name for name, _, _ in unread]), len(unread))
            for (_, position, place), found in zip(unread, bounds, strict=True):
                if isinstance(found, FAILURES):
                    failure = found
                else:
                    counts[place] += max(0, found.tail - max(position, found.head))
        for lane in await of_each(self._store.lanes.inspect([group.name for group in groups]), len(groups)):
            if isinstance(lane, FAILURES):
                failure = lane
            else:
                counts[Part.DELAYED] += lane.waiting
                counts[Part.DEAD] += lane.dead
        if sorted_groups:
            inspected = self._store.sorted.inspect([slot for slot, _ in sorted_groups], int(now * 1000))
            slots = await of_each(inspected, len(sorted_groups))
            for (_, place), state in zip(sorted_groups, slots, strict=True):
                if isinstance(state, FAILURES):
                    failure = state
                else:
                    counts[place] += state.due
                    counts[Part.DELAYED] += state.waiting - state.due + state.resting
                    counts[Part.DEAD] += state.dead
        return failure


def _waits_for(group: OwnedGroup, now: float) -> Part:
    """Return what the messages of the group wait for that no key holds back."""
    owner = group.owner
    if owner.handler is None or owner.topic.state is State.PAUSED:
        return Part.PARKED
    if owner.throttle is not None and not owner.throttle.is_limited:
        return Part.PARKED
    if owner.room() <= 0:
        return Part.HELD_BY_ROOM
    return Part.READY if group.counter.available(now) > 0 else Part.HELD_BY_RATE
