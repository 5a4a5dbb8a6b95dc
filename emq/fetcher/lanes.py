"""The lane loop: brings delayed messages and retries out of their lanes when they are due."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from emq import errors, message
from emq.clock import Clock
from emq.fetcher.due import DueTimes
from emq.lease import Lease
from emq.owned import OwnedGroup
from emq.storage import Claim, Claimed, LaneStore

log = logging.getLogger(__name__)

CLAIM_SLOTS = 500
"""Most slots in one claim."""

CROWDED_S = 0.25
"""When a slot with more due than its group can take soon is looked at again."""

UNREACHABLE_S = 1.0

LOST_S = 60.0
"""After a claim whose answer was lost: how long a group waits, at most, for what it holds of its lane to be settled."""


class LaneClaimer:
    """Claims from the lanes of all groups of the host by their due times; a lane with nothing in it costs nothing.

    If the answer of a claim is lost, what it took is claimed and nobody has it. It is put back by `LaneStore.recover`,
    which puts back all that is claimed; so the group's lane first rests until what the host has of it is settled.
    """

    def __init__(
        self,
        store: LaneStore,
        clock: Clock,
        *,
        on_buffered: Callable[[OwnedGroup], None],
        on_expiring: Callable[[OwnedGroup], None],
        on_schedule: Callable[[OwnedGroup, message.Message], None],
        on_claimed: Callable[[OwnedGroup, str], None],
        on_lost: Callable[[OwnedGroup], None],
        lease: Lease | None = None,
    ) -> None:
        """Args:
        on_buffered: called when a group received messages.
        on_expiring: called when some of them have a time to live.
        on_schedule: called with an entry that publishes again and again, instead of buffering it.
        on_claimed: called with the id of each entry that was claimed.
        on_lost: called when the store says that the group has a newer owner.
        lease: whether anything may be claimed; None for always.
        """
        self._store = store
        self._clock = clock
        self._on_buffered = on_buffered
        self._on_expiring = on_expiring
        self._on_schedule = on_schedule
        self._on_claimed = on_claimed
        self._on_lost = on_lost
        self._lease = lease or Lease()
        self._groups: dict[str, OwnedGroup] = {}
        self._due = DueTimes(clock)

    def acquire(self, group: OwnedGroup) -> None:
        """From now on the group's slot is claimed; at once first, to learn its next due time and to arm it."""
        self._groups[group.name] = group
        self.at(group.name, 0)

    def release(self, group: OwnedGroup) -> None:
        self._groups.pop(group.name, None)
        self._due.forget(group.name)

    def at(self, slot: str, due_ms: int) -> None:
        """Something in the lane is due at `due_ms`."""
        if slot in self._groups:
            self._due.at(slot, due_ms)

    def woken(self, slots: Iterable[str]) -> None:
        """The store says that these lanes have something due earlier than they were armed with."""
        for slot in slots:
            self.at(slot, 0)

    async def claim(self) -> None:
        """Claim what is due, wait for what is next. Ends by cancellation."""
        while True:
            await self._lease.claiming()
            if slots := self._due.pop(int(self._clock.now() * 1000), CLAIM_SLOTS):
                await self._claim(slots)
            else:
                await self._due.wait()

    async def _claim(self, slots: list[str]) -> None:
        now_ms = int(self._clock.now() * 1000)
        groups = [group for slot in slots if self._may_claim(group := self._groups[slot], now_ms)]
        claims = [Claim(g.name, sum(rooms := _rooms(g)), g.epoch, rooms) for g in groups]
        try:
            await self._recover([g for g in groups if g.lane_lost_ms], now_ms)
            answers = await self._store.claim(claims, now_ms)
        except (errors.StoreUnavailable, errors.StoreFull) as exc:
            log.warning("%s; retries wait", exc)
            for group in groups:
                group.lane_lost_ms = group.lane_lost_ms or now_ms
                self.at(group.name, now_ms + 1)
            await asyncio.sleep(UNREACHABLE_S)
            return
        for group, claim, answer in zip(groups, claims, answers, strict=True):
            if isinstance(answer, errors.NotOwner):
                self._on_lost(group)
            elif not group.stopping and self._groups.get(group.name) is group:
                self._buffer(group, claim, answer, now_ms)

    def _may_claim(self, group: OwnedGroup, now_ms: int) -> bool:
        if group.lane_lost_ms and group.lane_out > 0 and now_ms < group.lane_lost_ms + LOST_S * 1000:
            self.at(group.name, now_ms + int(CROWDED_S * 1000))
            return False
        return True

    async def _recover(self, groups: list[OwnedGroup], now_ms: int) -> None:
        """Put back what a lost answer had brought."""
        if groups:
            # Recovering is not fenced: ask first whether a newer owner's claims would be put back.
            asked = await self._store.claim([Claim(g.name, 0, g.epoch) for g in groups], now_ms)
            owned = [(g.name, g.epoch) for g, a in zip(groups, asked, strict=True) if isinstance(a, Claimed)]
            await self._store.recover(owned, now_ms + 1)
            for group in groups:
                group.lane_lost_ms = 0

    def _buffer(self, group: OwnedGroup, claim: Claim, claimed: Claimed, now_ms: int) -> None:
        group.lane_out += len(claimed.entries)
        taken: Counter[int] = Counter()
        for id_, body in claimed.entries:
            self._on_claimed(group, id_)
            try:
                m = message.decode(body)
            except message.UNREADABLE:
                m = message.Message(id=id_, payload=bytes(body))
            m.topic = group.owner.topic.name
            m.group = group.index
            m.priority = min(m.priority, len(group.buffers) - 1)
            m.offset = -1
            m.ready_us = self._clock.now_us()
            taken[m.priority] += 1
            if m.schedule is not None:
                self._on_schedule(group, m)
                continue
            group.retries[m.priority] = group.retries.get(m.priority, 0) + 1
            group.push(m.priority, [m])
            if m.expires_us:
                group.expires_us = min(group.expires_us or m.expires_us, m.expires_us)
                self._on_expiring(group)
        if claimed.entries:
            self._on_buffered(group)
        if claimed.next_due_ms is not None and group.owner.handler is not None:  # a resumed topic is looked at anew
            crowded = claimed.next_due_ms <= now_ms and not _may_have_more(group, claim.rooms, taken)
            self.at(group.name, now_ms + int(CROWDED_S * 1000) if crowded else claimed.next_due_ms)


def _rooms(group: OwnedGroup) -> list[int]:
    """Retries to claim now of each priority: at most a buffer's worth waits at a time, and one at the host's bound.

    Each has room of its own, as in the queues: what waits of a low priority keeps no high one in the store.
    """
    if group.stopping or group.owner.handler is None:
        return []
    capacity = 1 if group.gauge.full() else group.capacity
    return [max(0, capacity - group.retries.get(priority, 0)) for priority in range(len(group.buffers))]


def _may_have_more(group: OwnedGroup, rooms: Sequence[int], taken: Counter[int]) -> bool:
    """True if some priority was claimed as far as it had room, and has room again."""
    return any(now and taken[p] >= had > 0 for p, (now, had) in enumerate(zip(_rooms(group), rooms, strict=False)))
