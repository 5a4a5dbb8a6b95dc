"""Carries out the assignments of the membership: acquires the groups given to this host, lets go of the others.

Every `LOOK_S` the host compares how many groups it is given, holds and consumes, every `COMPARE_S` which ones, and
repairs the difference, whatever has caused it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import AsyncIterator, Collection, Coroutine, Iterable, Mapping, Set
from typing import Any, cast

from emq.allocation.bucket_membership import BucketMembership
from emq.allocation.membership import Assignment
from emq.groups.owned import OwnedGroup
from emq.host import garbage_collection
from emq.host.catalog_loop import CatalogLoop
from emq.host.letting_go import LettingGo
from emq.host.ownership import Acquired, Ownership
from emq.runtime import errors, pace, plurals
from emq.runtime.clock import Clock
from emq.runtime.troubles import Complaint, Troubles
from emq.storage.answers import FAILURES, Failure, unexpected

log = logging.getLogger(__name__)

LOOK_S = 2.0
"""Most seconds between two comparisons of the numbers of groups given and consumed."""

COMPARE_S = 30.0
"""Seconds between two comparisons group by group, while the numbers are equal. With 20,000 groups, one takes 3 ms."""

EARLIEST, LATEST = 0.15, 0.35
"""Part of a second, from and to, in which the host begins to let go of groups. A new owner starts nothing in the second
in which it acquires a group, so that the quota holds. So a group that has used its quota of this second loses no start
if the move ends within the second."""


TOGETHER = 1_000
"""Most groups acquired at a time: many, for few round trips; not all, to spare the event loop and the servers."""

AT_ONCE = 3
"""Most such parts at once, so that the servers work for one while this host works on another."""


class Assignments:
    """Two loops: `follow` receives assignments, `carry_out` acquires groups and lets go of groups accordingly.

    The host lets go of groups while it acquires others, and of each group as soon as that group is drained. So a group
    with a slow handler delays only itself.

    Attributes:
        ready: set once the first assignment is carried out.
    """

    def __init__(
        self,
        membership: BucketMembership,
        ownership: Ownership,
        letting_go: LettingGo,
        catalog: CatalogLoop,
        clock: Clock,
        drain_s: float,
    ) -> None:
        """
        Args:
            catalog: tells of new topics.
            drain_s: seconds to wait for messages in flight of a group before letting go of it.
        """
        self._membership = membership
        self._ownership = ownership
        self._letting = letting_go
        self._clock = clock
        self._drain_s = drain_s
        self._catalog = catalog
        catalog.when_created(self.created)
        # Nothing is carried out, nor is the host ready, before the first assignment comes.
        self._carried_out = self._target = Assignment({})
        self._era = 0  # to which all groups here belong; while it is not the target's, they are being forgotten
        self._told: dict[str, int] = {}
        self._first: dict[str, int] = {}  # group to the epoch under which no host has had it
        self._letting_go: set[str] = set()
        self._refused: dict[str, int] = {}
        self._compared_s = float("-inf")
        self._asking: asyncio.Task[None] | None = None
        self._touched: set[str] | None = None  # groups to look at; None for all
        self._is_stopping = False
        self._changed = asyncio.Event()
        self._complaint = Complaint(log)
        self._troubles = Troubles("their groups wait to be acquired")
        self._tasks: set[asyncio.Task[None]] = set()
        self.ready = asyncio.Event()

    async def follow(self) -> None:
        """Receive assignments. Ends by cancellation."""
        async for assignment in self._membership.assignments():
            # All before the first step that may fail: the cluster waits until what it told is released.
            if assignment.era != self._target.era:  # what is being acquired belongs to others now, too
                self._told, self._first, self._refused = {}, {}, {}
                self._target = Assignment({}, assignment.era)
            groups = assignment.groups
            kept = {g: e for g, e in self._first.items() if groups.get(g) == e}
            self._first = kept | {g: groups[g] for g in assignment.first if g not in self._told}
            new = groups if assignment.changed is None else {g: groups[g] for g in assignment.changed if g in groups}
            if self._refused:
                new = {g: e for g, e in new.items() if self._refused.get(g) != e}
            for group, epoch in new.items():
                self._told.setdefault(group, epoch)
            if assignment.era != self._era:
                await self._ownership.forget_all()
                self._era = assignment.era
            self._target = assignment
            self._touch(assignment.changed)

    async def carry_out(self) -> None:
        """Acquire groups and let go of groups until the owned groups are the assigned ones. Ends by cancellation."""
        try:
            while True:
                await pace.wait(self._changed, LOOK_S)
                if self._touched is None:
                    self._compared_s = float("-inf")
                touched, self._touched = self._touched or None, set()
                self._changed.clear()
                target = self._target
                if self._is_stopping or self._target.era != self._era or (touched is None and self._is_settled()):
                    continue
                self._let_go_of_the_rest(touched)
                self._start_again_what_stands(touched)
                self._refused = {g: e for g, e in self._refused.items() if self._target.groups.get(g) == e}
                try:
                    await self._catalog.look_for(self._target.catalog)
                    with garbage_collection.resting(len(target.groups) - len(self._ownership.groups)):
                        await self._acquire(touched)
                    self._complaint.over()
                    self._carried_out = target
                except (errors.DatabaseUnavailable, errors.StoreUnavailable, errors.StoreFull) as exc:
                    self._touched = None
                    self._complaint.say(f"{exc}; trying again")
        finally:
            for task in self._tasks:
                task.cancel()

    def stop(self) -> None:
        """Acquire nothing more; the caller lets go of the host's groups."""
        self._is_stopping = True

    def trouble(self) -> str:
        """Return the error that keeps groups from being acquired; empty without one."""
        return self._troubles.latest or self._complaint.said

    def fenced(self, group: OwnedGroup) -> None:
        """Forget a group whose epoch a store has refused, because the group has another owner.

        If the group is still assigned to this host, a stranger has taken it, and maybe others. A taken group gets no
        wake-ups, so this host asks the stores about every group that it owns.
        """
        self._ownership.lost(group)
        if self._target.groups.get(group.name) == group.epoch and (self._asking is None or self._asking.done()):
            self._asking = self._spawn(_ask_about_all(self._ownership), "emq strangers")
        self._refuse(group.name, group.epoch, was_held=True)

    def shrunk(self, group: OwnedGroup) -> None:
        """Start a group again whose store came back from a crash without messages that were read.

        The host stops the group at once and saves nothing, waits for messages in flight, and acquires the group again
        as the store has it.
        """
        if self._ownership.groups.get(group.name) is group and group.name not in self._letting_go:
            self._spawn(self._letting.abandon(group, self._drain_s), "emq start again", {group.name})

    def created(self, groups: Collection[str], former: Iterable[OwnedGroup]) -> None:
        """Look at the assignment of these groups again, because their topics are new in the catalog.

        A group of a new topic may have been assigned before this host knew the topic. And if a topic was deleted and
        created again, a plan may leave the groups of that name where they were.

        Args:
            former: groups here of earlier topics of the same names, to let go of without saving.
        """
        for group in former:
            self.shrunk(group)
        for name in groups:
            self._refused.pop(name, None)  # the refusal was of a former topic's group
        if self.ready.is_set():
            self._touch(groups)

    @contextlib.asynccontextmanager
    async def apart(self, groups: Iterable[str]) -> AsyncIterator[None]:
        """Let go of groups although they stay assigned, and acquire none of them before the end of the block."""
        mine = set(groups) - self._letting_go
        self._letting_go |= mine
        try:
            await self._letting.release(sorted(mine), self._drain_s)
            yield
        finally:
            self._letting_go -= mine
            self._touch(mine)

    def _touch(self, groups: Iterable[str] | None) -> None:
        """Look at these groups soon; None for all groups."""
        if groups is None:
            self._touched = None
        elif self._touched is not None:
            self._touched.update(groups)
        self._changed.set()

    def _refuse(self, group: str, epoch: int, *, was_held: bool = False) -> None:
        if self._target.groups.get(group) == epoch:
            self._refused[group] = epoch
        self._membership.fenced(group, epoch, was_held)

    def _is_settled(self) -> bool:
        """Return True if the host consumes exactly the groups that it is given; cheap, see `COMPARE_S`."""
        told, target, owned = self._told, self._target.groups, self._ownership
        if self._carried_out is not self._target:
            return False
        if not len(told) == len(target) == len(owned.consumed) == len(owned.groups):
            return False
        now_s = asyncio.get_running_loop().time()
        if now_s < self._compared_s + COMPARE_S:
            return True
        self._compared_s = now_s
        return told == target == owned.consumed

    def _let_go_of_the_rest(self, touched: Set[str] | None) -> None:
        """Begin to let go of groups that are not assigned any more. Needs neither the store nor the database."""
        owned, consumed, left = self._ownership.groups, self._ownership.consumed, set()
        for group in self._told.keys() | owned.keys() if touched is None else touched:
            told, epoch = self._told.get(group), self._target.groups.get(group)
            if group in self._letting_go:
                continue
            if told is not None and (told != epoch or consumed.get(group, told) != told):
                left.add(group)  # its epoch here differs from what was told in no known course of events
            elif epoch is None and group in owned:
                left.add(group)  # it was never assigned, in none either
        if left:
            self._spawn(self._let_go(left, self._target.era), "emq release", left)

    def _start_again_what_stands(self, touched: Set[str] | None) -> None:
        """Acquire groups again that an error has left stopped."""
        owned = self._ownership.groups
        for name in owned if touched is None else sorted(owned.keys() & touched):
            if owned[name].stopping and name in self._target.groups:
                self.shrunk(owned[name])

    async def _acquire(self, touched: Set[str] | None) -> None:
        target = self._target.groups
        absent = (target.keys() if touched is None else touched) - self._ownership.groups.keys() - self._letting_go
        # In one order: a set's order changes from run to run.
        names: Iterable[str] = sorted(absent) if touched is not None else target if absent else ()
        new = {g: target[g] for g in names if g in absent and self._refused.get(g) != target.get(g) is not None}
        if new:
            started, era = time.monotonic(), self._target.era
            acquired = waits = 0
            parts = [
                {group: new[group] for group in together[start : start + TOGETHER]}
                for together in self._troubles.apart(list(new), str)
                for start in range(0, len(together), TOGETHER)
            ]
            for first in range(0, len(parts), AT_ONCE):
                some = parts[first : first + AT_ONCE]
                found = await _all_ended(self._acquire_part(part, era) for part in some)
                for part, (refused, waiting) in zip(some, found, strict=True):
                    for group in refused:
                        self._refuse(group, new[group])
                    for group in part.keys() - waiting.keys():
                        self._troubles.well(group)
                    for group, failure in waiting.items():
                        self._troubles.failed(group, failure)
                    waits += len(waiting)
                    acquired += sum(group in self._ownership.groups for group in part)
                if not self._is_wanted(era):
                    return
            if waits == len(new):
                return
            if acquired:
                log.info("acquired %s in %.2f s", plurals.count(acquired, "group"), time.monotonic() - started)
        self.ready.set()

    def _is_wanted(self, era: int) -> bool:
        return self._target.era == era and not self._is_stopping

    async def _acquire_part(self, part: Mapping[str, int], era: int) -> Acquired:
        """Acquire some groups; after an unexpected error, acquire each alone next time, since one may be the cause."""
        try:
            # Whatever comes of it: from now on, this host may have had the group.
            first = {group for group, epoch in part.items() if self._first.pop(group, None) == epoch}
            return await self._ownership.acquire(part, self._catalog.look_for, lambda: self._is_wanted(era), first)
        except (errors.DatabaseUnavailable, *FAILURES):
            raise
        except Exception as exc:
            failure: Failure = unexpected(exc)
            return Acquired((), {group: failure for group in part if group not in self._ownership.groups})

    async def _let_go(self, left: set[str], era: int) -> None:
        """Let go of the groups in `left`; take each out of `left` when that is done."""
        count, started = 0, time.monotonic()
        part = self._clock.now() % 1.0
        if any(group in self._ownership.groups for group in left) and not EARLIEST <= part <= LATEST:
            await asyncio.sleep((EARLIEST - part) % 1.0)
        async for done in self._letting.releasing(left, self._drain_s):
            if era == self._target.era:
                await self._membership.released(done)  # should the call fail, `_told` keeps the groups: tell again
                for group in done:
                    self._told.pop(group, None)
                self._told.update({g: e for g in done if (e := self._target.groups.get(g)) is not None})
            self._letting_go.difference_update(done)
            left.difference_update(done)
            self._touch(done)
            count += len(done)
        log.info("let go of %s in %.2f s", plurals.count(count, "group"), time.monotonic() - started)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str, left: Set[str] = frozenset()) -> asyncio.Task[None]:
        """Do the work beside the loops. Meanwhile the groups in `left` are being let go of.

        The end of the task ends that, since a task that is cancelled before its first step runs no line of the work.
        """
        self._letting_go |= left
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._ended, left))
        return task

    def _ended(self, left: Set[str], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._letting_go -= left
        if not task.cancelled() and (bug := task.exception()) is not None:
            self._compared_s = float("-inf")
            log.error("letting go of groups broke; they are tried again in %g s", LOOK_S, exc_info=bug)
        else:
            self._touch(left)


async def _all_ended(calls: Iterable[Coroutine[Any, Any, Acquired]]) -> list[Acquired]:
    """Wait for all; raise an error once all have ended, since groups may not be tried again while a part goes on."""
    found = await asyncio.gather(*calls, return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return cast(list[Acquired], found)


async def _ask_about_all(ownership: Ownership) -> None:
    await ownership.look_at_lanes()
    await pace.rest(LOOK_S)
