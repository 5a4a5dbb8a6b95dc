"""The lane loop: brings delayed messages and retries out of their lanes when they are due."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from emq import errors, message
from emq.clock import Clock
from emq.fetcher.due_times import DueTimes
from emq.fetcher.forwarder import is_moved
from emq.groups.owned import Broken, OwnedGroup
from emq.loops.aside import Aside, Call
from emq.loops.lease import Lease
from emq.loops.troubles import Troubles
from emq.storage.answers import FAILURES, Failure, of_each
from emq.storage.store import Claim, Claimed, LaneStore

log = logging.getLogger(__name__)

CLAIM_SLOTS = 500
"""Most slots in one claim."""

CLAIM_BYTES = 4 << 20
"""Most bytes of bodies in one claim (or a single entry), so that it holds up neither the server nor this loop."""

CROWDED_S = 0.25
"""When a slot with more due than its group can take soon is looked at again."""

LOST_S = 60.0
"""After a claim whose answer was lost: how long a group waits, at most, for what it holds of its lane to be settled."""


class LaneClaimer:
    """Claims from the lanes of all groups of the host by their due times; a lane with nothing in it costs nothing.

    If the answer of a claim is lost, what it took is claimed and nobody has it. It is put back by `LaneStore.recover`,
    which puts back all that is claimed; so the group's lane first rests until what the host has of it is settled.
    A lane whose server cannot serve it rests, longer each time; the lanes of other servers go on.
    """

    def __init__(
        self,
        store: LaneStore,
        clock: Clock,
        *,
        on_buffered: Callable[[OwnedGroup], None],
        on_expiring: Callable[[OwnedGroup], None],
        on_schedule: Callable[[OwnedGroup, message.Message], None],
        on_moved: Callable[[OwnedGroup, message.Message, bytes, int], None],
        on_claimed: Callable[[OwnedGroup, str], None],
        on_damaged: Callable[[OwnedGroup, message.Message, str], None],
        on_lost: Callable[[OwnedGroup], None],
        on_broken: Broken | None = None,
        lease: Lease | None = None,
    ) -> None:
        """Args:
        on_buffered: called when a group received messages.
        on_expiring: called when some of them have a time to live.
        on_schedule: called with an entry that publishes again and again, instead of buffering it.
        on_moved: called with an entry whose key belongs to another group now, its body and the time of the claim,
            instead of buffering it.
        on_claimed: called with the id of each entry that was claimed.
        on_damaged: called with each entry that could not be decoded, and why; its payload is the stored record.
        on_lost: called when the store says that the group has a newer owner.
        on_broken: called with a group whose entries could not be worked off; None to raise instead.
        lease: whether anything may be claimed; None for always.
        """
        self._store = store
        self._clock = clock
        self._on_buffered = on_buffered
        self._on_expiring = on_expiring
        self._on_schedule = on_schedule
        self._on_moved = on_moved
        self._on_claimed = on_claimed
        self._on_damaged = on_damaged
        self._on_lost = on_lost
        self._on_broken = on_broken
        self._lease = lease or Lease()
        self._groups: dict[str, OwnedGroup] = {}
        self._due = DueTimes(clock)
        self._troubles = Troubles("delayed messages and retries wait")
        self._claiming: set[str] = set()
        self._again: set[str] = set()

    def acquire(self, group: OwnedGroup) -> None:
        """From now on the group's slot is claimed; at once first, to learn its next due time and to arm it."""
        self._groups[group.name] = group
        self.at(group.name, 0)

    def release(self, group: OwnedGroup) -> None:
        self._groups.pop(group.name, None)
        self._due.forget(group.name)
        self._troubles.well(group.name)

    def at(self, slot: str, due_ms: int) -> None:
        """Something in the lane is due at `due_ms`."""
        if slot in self._groups:
            self._due.at(slot, due_ms)

    def woken(self, slots: Iterable[str]) -> None:
        """The store says that these lanes have something due earlier than they were armed with."""
        for slot in slots:
            self.at(slot, 0)

    def doubted(self, group: OwnedGroup) -> None:
        """The store may have come back from a crash: look at the lane, and put back what is claimed there by nobody.

        An entry whose acknowledgement the store has forgotten is claimed again in it, and would stay so.
        """
        group.lane_lost_ms = group.lane_lost_ms or int(self._clock.now() * 1000)
        self.at(group.name, 0)

    async def claim(self) -> None:
        """Claim what is due, wait for what is next. Ends by cancellation."""
        await Aside().run(self._claims)

    async def _claims(self) -> list[Call]:
        await self._lease.valid(self._clock)
        now_ms = int(self._clock.now() * 1000)
        slots = self._due.pop(now_ms, CLAIM_SLOTS)
        if not slots:
            await self._due.wait()
        # A lane is with one claim at a time.
        self._again.update(self._claiming.intersection(slots))
        slots = [slot for slot in slots if slot not in self._claiming]
        return [partial(self._claim, part, now_ms) for part in self._troubles.apart(slots, str)]

    async def _claim(self, slots: Sequence[str], now_ms: int) -> None:
        self._claiming.update(slots)
        try:
            groups = [g for slot in slots if (g := self._groups.get(slot)) and self._may_claim(g, now_ms)]
            if lost := [group for group in groups if group.lane_lost_ms]:
                await self._recover(lost, now_ms)
                groups = [group for group in groups if not group.lane_lost_ms]
            now = self._clock.now()
            claims = [Claim(g.name, sum(rooms := _rooms(g, now)), g.epoch, rooms) for g in groups]
            call = self._store.claim(claims, now_ms, CLAIM_BYTES) if claims else None
            answers = await of_each(call, len(claims)) if call else ()
            found = [answer for answer in answers if isinstance(answer, Claimed)]
            cut = sum(len(body) for answer in found for _, body in answer.entries) >= CLAIM_BYTES
            for group, claim, answer in zip(groups, claims, answers, strict=True):
                if isinstance(answer, errors.NotOwner):
                    self._on_lost(group)
                elif isinstance(answer, FAILURES):
                    self._failed(group, answer, now_ms)
                elif not group.stopping and self._groups.get(group.name) is group:
                    self._troubles.well(group.name)
                    try:
                        self._buffer(group, claim, answer, now_ms, cut)
                    except Exception as exc:  # of one lane only
                        if self._on_broken is None:
                            raise
                        self._on_broken("lanes", group, exc)
        finally:
            self._claiming.difference_update(slots)
            for slot in self._again.intersection(slots):
                self._again.discard(slot)
                self.at(slot, 0)

    def _failed(self, group: OwnedGroup, failure: Failure, now_ms: int) -> None:
        if self._groups.get(group.name) is group:
            group.lane_lost_ms = group.lane_lost_ms or _passed_ms()
            rest_s = self._troubles.failed(group.name, failure)
            self.at(group.name, int((self._clock.now() + rest_s) * 1000) + 1)

    def _may_claim(self, group: OwnedGroup, now_ms: int) -> bool:
        if group.lane_lost_ms and group.lane_out > 0 and _passed_ms() < group.lane_lost_ms + LOST_S * 1000:
            self.at(group.name, now_ms + int(CROWDED_S * 1000))
            return False
        return True

    async def _recover(self, groups: list[OwnedGroup], now_ms: int) -> None:
        """Put back what a lost answer had brought; groups of which that fails keep their mark."""
        # Recovering is not fenced: ask first whether a newer owner's claims would be put back.
        asked = await of_each(self._store.claim([Claim(g.name, 0, g.epoch) for g in groups], now_ms), len(groups))
        owned: list[OwnedGroup] = []
        for group, claimed in zip(groups, asked, strict=True):
            if isinstance(claimed, Claimed):
                owned.append(group)
            elif isinstance(claimed, FAILURES):
                self._failed(group, claimed, now_ms)
            else:
                self._on_lost(group)
        recovered = await of_each(self._store.recover([(g.name, g.epoch) for g in owned], now_ms + 1), len(owned))
        for group, answer in zip(owned, recovered, strict=True):
            if isinstance(answer, FAILURES):
                self._failed(group, answer, now_ms)
            else:
                group.lane_lost_ms = 0

    def _buffer(self, group: OwnedGroup, claim: Claim, claimed: Claimed, now_ms: int, cut: bool) -> None:
        group.lane_out += len(claimed.entries)
        taken: Counter[int] = Counter()
        for id_, body in claimed.entries:
            self._on_claimed(group, id_)
            damage = ""
            try:
                m = message.read(body)
            except message.UNREADABLE as exc:
                # Nobody else adds to lanes, so this was a record of ours.
                m, damage = message.Message(id=id_, payload=bytes(body)), message.damage(exc)
            m.id = id_  # by which its verdict finds it, also if the body says otherwise
            m.topic = group.owner.topic.name
            m.group = group.index
            m.priority = min(m.priority, len(group.buffers) - 1)
            m.offset = -1
            m.ready_us = self._clock.now_us()
            taken[m.priority] += 1
            if damage:
                log.error("entry %s of lane %s: %s; it is a dead letter now, see emq dead", id_, group.name, damage)
                self._on_damaged(group, m, damage)
                continue
            if m.schedule is not None:
                self._on_schedule(group, m)
                continue
            group.retries[m.priority] = group.retries.get(m.priority, 0) + 1
            if is_moved(group, m):
                self._on_moved(group, m, body, now_ms)
                continue
            m.layout = group.owner.topic.layout
            group.push(m.priority, [m])
            if m.expires_us:
                group.expires_us = min(group.expires_us or m.expires_us, m.expires_us)
                self._on_expiring(group)
        if claimed.entries:
            self._on_buffered(group)
        if claimed.next_due_ms is not None and _is_claimed(group):  # a resumed topic is looked at anew
            rooms = _rooms(group, self._clock.now())
            more = any(rooms) if cut else _may_have_more(claim.rooms, rooms, taken)
            crowded = claimed.next_due_ms <= now_ms and not more
            self.at(group.name, now_ms + int(CROWDED_S * 1000) if crowded else claimed.next_due_ms)


def _rooms(group: OwnedGroup, now: float) -> list[int]:
    """Retries to claim now of each priority: at most a buffer's worth waits at a time, and within its topic's share of
    the host's memory; one if nothing of its topic is in memory.

    Each has room of its own, as in the queues: what waits of a low priority keeps no high one in the store.
    """
    if group.stopping or not _is_claimed(group):
        return []
    allowed = group.memory_room(now)
    if allowed <= 0:
        return [int(not group.owner.flying and not group.retries.get(p, 0)) for p in range(len(group.buffers))]
    return [max(0, min(allowed, group.capacity - group.retries.get(p, 0))) for p in range(len(group.buffers))]


def _is_claimed(group: OwnedGroup) -> bool:
    """Also while nothing may start, where what is due may outlive its time."""
    return group.owner.handler is not None or group.owner.topic.may_expire


def _may_have_more(had: Sequence[int], rooms: Sequence[int], taken: Counter[int]) -> bool:
    """True if some priority was claimed as far as it had room, and has room again."""
    return any(now and taken[p] >= then > 0 for p, (now, then) in enumerate(zip(rooms, had, strict=False)))


def _passed_ms() -> int:
    """Time that a correction of the clock does not change; above 0."""
    return int(asyncio.get_running_loop().time() * 1000) + 1
