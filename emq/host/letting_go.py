"""Lets go of groups: stops them, waits for their messages in flight, saves their progress."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable

from emq.groups.context import HostContext
from emq.groups.owned import OwnedGroup
from emq.host.options import DRAIN_S
from emq.host.ownership import Ownership
from emq.runtime import plurals
from emq.runtime.slicing import SLICE, in_slices
from emq.storage.names import parts_of
from emq.trail import events

log = logging.getLogger(__name__)

DRAIN_STEP_S = 0.02
"""Seconds between the looks of a release for drained groups; the groups of one look share a checkpoint."""


class LettingGo:
    """Lets go of groups that other hosts get, or that this host acquires again."""

    def __init__(self, ownership: Ownership, context: HostContext) -> None:
        self._ownership = ownership
        self._work = ownership.work
        self._clock = context.clock
        self._trail = context.trail
        self._busy: dict[str, Callable[[], bool]] = {}

    async def abandon(self, group: OwnedGroup, drain_s: float = DRAIN_S) -> None:
        """Let go of a group whose store has lost messages; save nothing, since its progress counts the lost messages.

        Waits up to `drain_s` seconds for messages in flight, so that messages of a key stay serial. Then waits for a
        save under way, which may hold the lost progress: the host acquires the group again under the same epoch, so no
        fence would refuse that save after the rewound checkpoint.
        """
        self._ownership.stop(group)
        group.lost = True
        deadline = asyncio.get_running_loop().time() + drain_s  # the host's clock may jump, the loop's does not
        while self._ownership.groups.get(group.name) is group and self._work.unsettled(group):
            if asyncio.get_running_loop().time() >= deadline:
                break
            await asyncio.sleep(DRAIN_STEP_S)
        await self._work.checkpointer.until_idle()
        if self._ownership.groups.get(group.name) is group:
            self._ownership.takeover.abandoned(group)
            self._ownership.forget(group)

    async def release(self, names: Iterable[str], drain_s: float = DRAIN_S) -> None:
        """Stop consuming groups: start nothing more, wait up to `drain_s` for messages in flight, save progress."""
        async for _ in self.releasing(names, drain_s):
            pass

    async def releasing(self, names: Iterable[str], drain_s: float = DRAIN_S) -> AsyncIterator[list[str]]:
        """Do as `release` does, and yield each released group's name, first those with no messages in flight.

        While the database does not answer, a group is released without its last second of progress.
        """
        names = list(names)
        groups = [group for name in names if (group := self._ownership.groups.get(name)) is not None]
        if absent := [name for name in names if name not in self._ownership.groups]:
            yield absent
        for group in groups:
            self._ownership.stop(group)
        deadline = asyncio.get_running_loop().time() + drain_s
        while groups:
            # Wait for a claim under way, too: its answer tells which messages to give back.
            unsettled = (
                g async for g in in_slices(groups) if self._work.unsettled(g) or g.is_claiming or self._is_kept(g)
            )
            waiting = [g async for g in unsettled if not g.lost]
            if asyncio.get_running_loop().time() >= deadline:
                if left := sum(self._work.unsettled(g) for g in waiting if not self._ownership.is_deleted(g)):
                    log.warning(
                        "%s still in flight after %g s, to be delivered again", plurals.count(left, "message"), drain_s
                    )
                waiting = []
            if len(waiting) < len(groups):
                held = set(waiting)
                drained = [g for g in groups if g not in held]
                for start in range(0, len(drained), SLICE):
                    yield await self._let_go(drained[start : start + SLICE])
                    await asyncio.sleep(0)
            groups = waiting
            await asyncio.sleep(DRAIN_STEP_S)

    def keep_while(self, topic: str, busy: Callable[[], bool]) -> None:
        """Let go of the topic's first group only when `busy` returns False, or `drain_s` is over."""
        self._busy[f"{topic}/0"] = busy

    def _is_kept(self, group: OwnedGroup) -> bool:
        busy = self._busy.get(group.name)
        return busy is not None and busy()

    async def _let_go(self, groups: list[OwnedGroup]) -> list[str]:
        await self._give_back(groups)
        await self._work.checkpointer.save()
        for group in groups:
            if self._ownership.groups.get(group.name) is group:
                self._ownership.forget(group)
                if self._trail.enabled:
                    self._trail.record(events.Released(self._clock.now_us(), *parts_of(group.name), group.epoch))
        return [group.name for group in groups]

    async def _give_back(self, groups: Iterable[OwnedGroup]) -> None:
        """Give back members that were claimed and not started, so that their slots need not roll them back later."""
        slots = [group.slot for group in groups if group.slot is not None and not group.lost]
        for slot in slots:
            slot.returning = slot.group.waiting_members()
        if failures := await self._work.slots.give_back(slots):
            left = plurals.count(len(failures), "claimed message")
            log.warning("%s; %s %s left to time out", failures[0], left, plurals.are(len(failures)))
