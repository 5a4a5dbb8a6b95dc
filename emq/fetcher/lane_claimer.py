"""The lane loop: brings delayed messages and retries out of their lanes when they are due."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial

from emq.fetcher.due_times import DueTimes
from emq.fetcher.forwarder import is_moved
from emq.groups import buffer_room, withdrawal
from emq.groups.context import HostContext
from emq.groups.owned import OwnedGroup
from emq.runtime import errors
from emq.runtime.aside import Asides, Call
from emq.runtime.troubles import Troubles
from emq.storage import message
from emq.storage.answers import FAILURES, Failure, of_each
from emq.storage.lane_store import LaneClaim, LaneClaimed, LaneStore

CLAIM_LANES = 500
"""Most lanes in one claim."""

CLAIM_BYTES = 4 << 20
"""Most bytes of bodies in one claim, so that a claim holds up neither the server nor this loop. A single larger entry
is claimed alone."""

CROWDED_S = 0.25
"""Seconds between claims from a lane that has more due entries than its group can take."""

LOST_S = 60.0
"""Most seconds that a group, after a claim whose answer was lost, waits until its earlier claims are settled."""


class LaneClaimer:
    """Claims from the lanes of all groups of the host by their due times; an empty lane costs nothing.

    If the answer of a claim is lost, no host has the claimed entries. `LaneStore.recover` puts back all claimed entries
    of the lane, so the lane first rests until the host has settled the entries that it holds. A lane whose server
    cannot serve it rests, longer each time; the lanes of other servers go on.
    """

    def __init__(self, store: LaneStore, context: HostContext) -> None:
        self._clock = context.clock
        self._events = context.events
        self._lease = context.lease
        self._store = store
        self._groups: dict[str, OwnedGroup] = {}
        self._due = DueTimes(context.clock)
        self._troubles = Troubles("delayed messages and retries wait")
        self._asides = Asides()
        self._claiming: set[str] = set()
        self._again: set[str] = set()
        self._astray: dict[str, int] = {}  # epochs of groups for which claims came late, by lane

    @property
    def unreachable(self) -> str | None:
        """The reason why some lane cannot be claimed from now; None if all can."""
        return self._troubles.latest

    def acquire(self, group: OwnedGroup) -> None:
        """Claim from the group's lane from now on.

        The first claim comes at once: it tells the lane's next due time and arms the lane, so that the store wakes this
        host when an earlier entry comes.
        """
        self._groups[group.name] = group
        self.at(group.name, 0)
        if self._astray.pop(group.name, None) == group.epoch:
            self.doubted(group)

    def release(self, group: OwnedGroup) -> None:
        self._groups.pop(group.name, None)
        self._due.forget(group.name)
        self._troubles.well(group.name)

    def deleted(self, lanes: Iterable[str]) -> None:
        """Forget late claims from lanes of a deleted topic."""
        for lane in lanes:
            self._astray.pop(lane, None)

    def at(self, lane: str, due_ms: int) -> None:
        """An entry of the lane is due at `due_ms`."""
        if lane in self._groups:
            self._due.at(lane, due_ms)

    def doubted(self, group: OwnedGroup) -> None:
        """The store may have come back from a crash: put back the lane's entries that are claimed but on no host.

        If the store forgot an acknowledgement in the crash, the entry would stay claimed for ever.
        """
        group.lane_lost_ms = group.lane_lost_ms or _passed_ms()
        self.at(group.name, 0)

    async def claim(self) -> None:
        """Claim due entries; without any, wait for the next due time. Ends by cancellation."""
        await self._asides.run(self._claims)

    async def _claims(self) -> list[Call]:
        await self._lease.valid(self._clock)
        now_ms = int(self._clock.now() * 1000)
        lanes = self._due.pop(now_ms, CLAIM_LANES)
        if not lanes:
            await self._due.wait()
        # Only one claim at a time takes from a lane.
        self._again.update(self._claiming.intersection(lanes))
        lanes = [lane for lane in lanes if lane not in self._claiming]
        return [partial(self._claim, part, now_ms) for part in self._troubles.apart(lanes, str)]

    async def _claim(self, lanes: Sequence[str], now_ms: int) -> None:
        self._claiming.update(lanes)
        groups: list[OwnedGroup] = []
        try:
            groups = [g for lane in lanes if (g := self._groups.get(lane)) and self._may_claim(g, now_ms)]
            if lost := [group for group in groups if group.lane_lost_ms]:
                await self._recover(lost, now_ms)
                groups = [group for group in groups if not group.lane_lost_ms]
            now = self._clock.now()
            claims = [LaneClaim(g.name, sum(rooms := _rooms(g, now)), g.epoch, rooms) for g in groups]
            finds = [group.lane_finds for group in groups]
            call = self._store.claim(claims, now_ms, CLAIM_BYTES) if claims else None
            answers = await of_each(call, len(claims)) if call else ()
            found = [answer for answer in answers if isinstance(answer, LaneClaimed)]
            cut = sum(len(body) for answer in found for _, body in answer.entries) >= CLAIM_BYTES
            for group, claim, answer, seen in zip(groups, claims, answers, finds, strict=True):
                if isinstance(answer, errors.NotOwner):
                    self._events.lost(group)
                elif isinstance(answer, FAILURES):
                    self._failed(group, answer, now_ms)
                elif not group.stopping and self._groups.get(group.name) is group:
                    self._troubles.well(group.name)
                    try:
                        group.lane_seen(answer.is_empty, seen)
                        self._buffer(group, claim, answer, now_ms, cut)
                    except Exception as exc:  # a failure of one lane must not stop the others
                        self._events.broken("lanes", group, exc)
                elif answer.entries:
                    self._came_late(group)
        except BaseException:  # as if the answer was lost
            for lane in lanes:
                if (owned := self._groups.get(lane)) is not None:
                    self.doubted(owned)
            for group in groups:
                self._came_late(group)
            raise
        finally:
            self._claiming.difference_update(lanes)
            for lane in self._again.intersection(lanes):
                self._again.discard(lane)
                self.at(lane, 0)

    def _came_late(self, former: OwnedGroup) -> None:
        """A claim may have taken entries for a group that the host has let go of: recover them if it comes back.

        It may come back, or be back, under the same epoch, and the lane may have been recovered before the claim
        arrived there.
        """
        group = self._groups.get(former.name)
        if group is None:
            self._astray[former.name] = former.epoch
        elif group is not former:
            self.doubted(group)

    def _failed(self, group: OwnedGroup, failure: Failure, now_ms: int) -> None:
        self._came_late(group)
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
        """Put back the entries of lost answers. If that fails for a group, the group keeps its mark `lane_lost_ms`."""
        lost_ms = [group.lane_lost_ms for group in groups]
        for group in groups:
            group.lane_lost_ms = 0  # before the call, so that it keeps a doubt that comes meanwhile
        recovered = await of_each(self._store.recover([(g.name, g.epoch) for g in groups], now_ms + 1), len(groups))
        for group, since_ms, answer in zip(groups, lost_ms, recovered, strict=True):
            if isinstance(answer, errors.EMQError):
                group.lane_lost_ms = since_ms
            if isinstance(answer, FAILURES):
                self._failed(group, answer, now_ms)
            elif isinstance(answer, errors.NotOwner):
                self._events.lost(group)

    def _buffer(self, group: OwnedGroup, claim: LaneClaim, claimed: LaneClaimed, now_ms: int, cut: bool) -> None:
        group.lane_claimed(len(claimed.entries))
        group.lane_finds += not claimed.is_empty
        taken: Counter[int] = Counter()
        for id_, body in claimed.entries:
            self._events.claimed(group, id_)
            damage = ""
            try:
                m = message.read(body)
            except message.UNREADABLE as exc:
                # Only EMQ adds to lanes, so this is one of its records, and damaged.
                m, damage = message.Message(uid=id_, payload=bytes(body)), message.damage(exc)
            message.note_size(m, len(body))
            m.uid = id_  # the verdict needs the lane's id, even if the id in the body differs
            m.topic = group.owner.topic.name
            m.group = group.index
            m.priority = min(m.priority, len(group.buffers) - 1)
            m.offset = -1
            m.ready_us = self._clock.now_us()
            taken[m.priority] += 1
            if damage:
                self._events.damaged(group, m, damage)
                continue
            if m.schedule is not None:
                self._events.schedule_due(group, m)
                continue
            if not withdrawal.kept(group, [m], self._events):
                continue
            group.count(m)
            if is_moved(group, m):
                self._events.moved(group, m, body, now_ms)
                continue
            m.layout = group.owner.topic.layout
            group.push(m.priority, [m])
            if m.expires_us:
                group.note_expiry(m.expires_us)
        if claimed.entries:
            self._events.ready(group)
        if claimed.next_due_ms is not None and _is_claimed(group):  # a topic that resumes is looked at again
            rooms = _rooms(group, self._clock.now())
            more = any(rooms) if cut else _may_have_more(claim.rooms, rooms, taken)
            crowded = claimed.next_due_ms <= now_ms and not more
            self.at(group.name, now_ms + int(CROWDED_S * 1000) if crowded else claimed.next_due_ms)


def _rooms(group: OwnedGroup, now: float) -> list[int]:
    """Return how many entries of each priority to claim now.

    At most a buffer's worth of a priority waits at a time, within the topic's share of the host's memory. If that share
    is used up and nothing of the topic is in flight, a priority that holds no entries may claim one. Each priority has
    room of its own, as in the queues: waiting messages of a low priority do not keep a higher priority in the store.
    """
    if group.stopping or not _is_claimed(group) or group.owner.is_overfull():
        return []
    allowed = buffer_room.room(group, now)
    if allowed <= 0:
        return [max(0, buffer_room.scant_room(group, group.retries.get(p, 0), now)) for p in range(len(group.buffers))]
    return [max(0, min(allowed, group.capacity - group.retries.get(p, 0))) for p in range(len(group.buffers))]


def _is_claimed(group: OwnedGroup) -> bool:
    """Return True if the lane is claimed now: a handler is bound, or messages may expire."""
    return group.owner.handler is not None or group.owner.topic.may_expire


def _may_have_more(had: Sequence[int], rooms: Sequence[int], taken: Counter[int]) -> bool:
    """Return True if the claim filled the room of some priority, and this priority has room again."""
    return any(now and taken[p] >= then > 0 for p, (now, then) in enumerate(zip(rooms, had, strict=False)))


def _passed_ms() -> int:
    """Return the milliseconds of a clock that corrections do not change; above 0."""
    return int(asyncio.get_running_loop().time() * 1000) + 1
