"""The lag loop of a host: counts the unfinished messages of its groups by the parts of the lag.

The same look finds the topics in trouble (`emq.host.troubled_topics`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from emq.groups.owned import OwnedGroup, OwnedTopic
from emq.host.lag_parts import Part
from emq.host.ownership import Ownership
from emq.host.statistics import TroubledTopic
from emq.host.troubled_topics import TroubledTopics
from emq.runtime import errors, pace
from emq.runtime.clock import Clock
from emq.storage.answers import FAILURES, of_each
from emq.storage.store import Store
from emq.topics.model import State

QUIET_S = 60.0
"""Seconds to the next look of a host without metrics that held no message at its last look and has started none."""

SOON_S = 1.0
"""The same while the host has no groups, so that it soon counts those that it gets, and while the store does not
answer, so that the host is soon ready again."""

GROUPS_AT_ONCE = 300
"""Groups in one step: at most three calls to the store, and about a millisecond of this process."""

STEP_S = 0.1
"""Seconds between two steps, so that a host with many groups spreads its questions."""


class LagSampler:
    """Looks at the groups of a host in turn, and remembers the counts of the last whole look.

    The look asks the store only for the tails of queues that the host has not read to the end, and for the sizes of
    slots and of lanes that hold something: at most one call of each kind for 300 groups in `STEP_S`. It asks for all
    lanes of 300 groups in any case, each time of others: to learn whether the store answers, and which lanes have got
    dead letters from elsewhere. (Those of dropped groups it need not find so: their topic changes, and its lanes are
    claimed.)

    Attributes:
        counts: messages of the host's groups by part, without those in flight.
        troubled: the topics in most trouble at the last whole look; at most `troubled_topics.MOST`.
        in_trouble: number of all topics in trouble then.
        quota: starts a second that the host's groups might make at that time.
        sampled_at: when the last whole look ended, by the host's clock; None before the first.
        unreachable: the error of the store in the present look or the last one; None without an error.
    """

    def __init__(self, ownership: Ownership, store: Store, clock: Clock, lag_s: float, *, skips_quiet: bool) -> None:
        """Args:
        lag_s: seconds between the end of a look and the beginning of the next one.
        skips_quiet: while the host is quiet, look only every `QUIET_S`.
        """
        self._lag_s, self._skips_quiet = lag_s, skips_quiet
        self._ownership = ownership
        self._store = store
        self._clock = clock
        self._topics = TroubledTopics()
        self._turn = 0  # the first of the groups all of whose lanes are asked for
        self.counts: dict[Part, int] = dict.fromkeys(Part, 0)
        self.troubled: tuple[TroubledTopic, ...] = ()
        self.in_trouble = 0
        self.quota = 0.0
        self.sampled_at: float | None = None
        self.unreachable: str | None = None

    async def sample(self) -> None:
        """Look at all groups again and again. Ends by cancellation."""
        while True:
            await self.look()
            seen = self._activity()
            await pace.rest(self._lag_s if self._ownership.groups and self.unreachable is None else SOON_S)
            slept_s = self._lag_s
            while self._skips_quiet and slept_s < QUIET_S and seen == self._activity() and not self._holds_something():
                await pace.rest(self._lag_s)
                slept_s += self._lag_s

    def _activity(self) -> tuple[int, int, int]:
        """Return numbers that change while the host is busy; cheap with any number of groups."""
        dispatcher = self._ownership.work.dispatcher
        return dispatcher.started, dispatcher.flight.count, len(self._ownership.groups)

    def _holds_something(self) -> bool:
        return self.unreachable is not None or any(
            n for part, n in self.counts.items() if part not in (Part.DELAYED, Part.DEAD)
        )

    async def look(self) -> None:
        """Look at all groups once. If the store does not answer for some of them, the former counts stay."""
        counts = _Counts()
        groups = list(self._ownership.groups.values())
        failure: errors.EMQError | None = None
        self._turn = self._turn + GROUPS_AT_ONCE if self._turn + GROUPS_AT_ONCE < len(groups) else 0
        for start in range(0, len(groups), GROUPS_AT_ONCE):
            if start:
                await asyncio.sleep(STEP_S)
            part = groups[start : start + GROUPS_AT_ONCE]
            lanes = [group for group in part if start == self._turn or not group.lane_is_empty]
            failure = await self._add(counts, part, lanes) or failure
        self.unreachable = None if failure is None else str(failure)
        if failure is None:
            self.counts, self.quota, self.sampled_at = counts.all, counts.quota, self._clock.now()
            self.troubled, self.in_trouble = await self._topics.found(counts.topics, self.sampled_at)

    async def _add(
        self, counts: _Counts, groups: Sequence[OwnedGroup], with_lanes: Sequence[OwnedGroup]
    ) -> errors.EMQError | None:
        """Add the messages of some groups; return the error of one that the store could not serve, or None.

        Args:
            with_lanes: those of the groups whose lanes may hold something.
        """
        now = self._clock.now()
        unread = []
        sorted_groups = []
        for group in groups:
            counts.quota += group.quota
            more = [queue for queue in group.queues if queue.more]
            if not (group.buffered or group.held or more or group.slot is not None):
                continue  # as most groups, most of the time
            owner, place = group.owner, _waits_for(group, now)
            counts.add(owner, place, group.buffered)
            counts.add(owner, Part.HELD_BY_KEY, group.held)
            unread += [(owner, queue.name, queue.position, place) for queue in more]
            if group.slot is not None:
                sorted_groups.append((owner, group.slot.slot, place))
        failure: errors.EMQError | None = None
        if unread:
            bounds = await of_each(self._store.log.bounds([name for _, name, _, _ in unread]), len(unread))
            for (owner, _, position, place), found in zip(unread, bounds, strict=True):
                if isinstance(found, FAILURES):
                    failure = found
                else:
                    counts.add(owner, place, max(0, found.tail - max(position, found.head)))
        if with_lanes:
            finds = [group.lane_finds for group in with_lanes]
            inspected = self._store.lanes.inspect([group.name for group in with_lanes])
            lanes = await of_each(inspected, len(with_lanes))
            for group, lane, seen in zip(with_lanes, lanes, finds, strict=True):
                if isinstance(lane, FAILURES):
                    failure = lane
                else:
                    group.lane_seen(not (lane.waiting or lane.prepared or lane.dead), seen)
                    counts.add(group.owner, Part.DELAYED, lane.waiting)
                    counts.add(group.owner, Part.DEAD, lane.dead)
        if sorted_groups:
            found_slots = self._store.sorted.inspect([slot for _, slot, _ in sorted_groups], int(now * 1000))
            slots = await of_each(found_slots, len(sorted_groups))
            for (owner, _, place), state in zip(sorted_groups, slots, strict=True):
                if isinstance(state, FAILURES):
                    failure = state
                else:
                    counts.add(owner, place, state.due)
                    counts.add(owner, Part.DELAYED, state.waiting - state.due + state.resting)
                    counts.add(owner, Part.DEAD, state.dead)
        return failure


class _Counts:
    """Messages by part, of all groups and by topic; and the quota of the groups."""

    def __init__(self) -> None:
        self.all = dict.fromkeys(Part, 0)
        self.topics: dict[OwnedTopic, dict[Part, int]] = {}
        self.quota = 0.0

    def add(self, owner: OwnedTopic, part: Part, n: int) -> None:
        if n:
            self.all[part] += n
            mine = self.topics.setdefault(owner, {})
            mine[part] = mine.get(part, 0) + n


def _waits_for(group: OwnedGroup, now: float) -> Part:
    """Return the part of the group's messages that no key holds back."""
    owner = group.owner
    if owner.handler is None or owner.topic.state is State.PAUSED:
        return Part.PARKED
    if (throttle := owner.throttle_at(now)) is not None and not throttle.is_limited:
        return Part.PARKED
    if owner.room() <= 0:
        return Part.HELD_BY_ROOM
    return Part.READY if group.counter.available(now) > 0 else Part.HELD_BY_RATE
