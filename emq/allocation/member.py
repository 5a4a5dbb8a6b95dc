"""A host's membership in a cluster that meets in a coordination tree."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, KeysView, Mapping
from typing import Protocol

from emq.allocation import other_members, published_plan, records
from emq.allocation.announcement import Announcement
from emq.allocation.fenced_groups import MAX_NAMED_BYTES, FencedGroups, named, size_of
from emq.allocation.grounds import GROUNDS, Grounds
from emq.allocation.handoff import Handoff
from emq.allocation.heartbeat import BEATS, Heartbeat
from emq.allocation.leader import Leader
from emq.allocation.membership import Assignment, AssignmentStream, PlanInForce, Seat
from emq.allocation.other_members import OtherMembers
from emq.allocation.plan.drafting import NO_HOSTS
from emq.allocation.published_plan import OwnList
from emq.allocation.records import Former, Record, Running
from emq.allocation.strangers import Closing, Strangers, none_closing
from emq.allocation.tree import protocol
from emq.database import levels
from emq.runtime import errors, pace
from emq.runtime.guard import FATAL, Guard
from emq.runtime.lease import Lease
from emq.runtime.slicing import in_slices
from emq.runtime.troubles import Complaint

log = logging.getLogger(__name__)

RETRY_S = 0.2
FOREIGN_S = 10.0

MAX_PATTERN_BYTES = 50_000
"""Most bytes of topic patterns that a host announces; a host with more counts as one with handlers for all topics."""


class Reachable(Protocol):
    """The part of a database that the cluster needs to know; see `emq.database.Database`."""

    @property
    def away_s(self) -> float: ...

    @property
    def unreachable(self) -> str | None: ...


class ClusterMembership:
    """See `emq.allocation.membership.Membership`.

    States, and what causes each:

    *outside*: before `join` and after `leave`.
    *member*: the host's nodes are in the tree; each heartbeat renews the lease. `join` causes this state; an expired
        host returns to it by itself.
    *suspended*: the connection broke, or a heartbeat got no reply. The host goes on until its lease ends; after that
        the host claims and starts nothing. The next heartbeat with a reply makes the host a member again.
    *expired*: the servers ended the session, or somebody deleted the host's node. All its groups belong to others now.
    """

    def __init__(
        self,
        seat: Seat,
        *,
        weight: float = 1.0,
        database: Reachable | None = None,
        debounce_first: bool = True,
        serves: Callable[[], tuple[str, ...] | None] = lambda: None,
        closing: Closing = none_closing,
    ) -> None:
        """
        Args:
            seat: its tree is not open yet; `leave` closes the tree.
            weight: the host's share, compared with the others'.
            database: reports to the cluster how long it has been away; None for a database that always answers.
            debounce_first: as for `Leader`.
            serves: returns the patterns of the topics that have a handler here, at each call; None for all topics.
            closing: see `emq.allocation.strangers`.
        """
        records.validate_host(seat.host)
        self.host = seat.host
        self.lease = Lease(until=0.0)
        self._tree = seat.tree
        self._paths = records.Paths(seat.environment)
        self._environment = seat.environment
        self._clock = seat.clock
        self.next_epoch: Callable[[], Awaitable[int]] = seat.next_epoch
        self._weight = weight
        self._serves = serves
        self._complaint = Complaint(log)
        self._heartbeat = Heartbeat(seat.tree, self._paths, seat.clock, self.lease, self._complaint.say)
        self._announcement = Announcement(seat.tree, self._paths, seat.host)
        self._database = database
        away_s = (lambda: 0.0) if database is None else (lambda: database.away_s)
        self._leader = Leader(seat, debounce_first=debounce_first, database_away_s=away_s)
        self._handoff = Handoff()
        self._changed = asyncio.Event()
        self._others = OtherMembers(seat.tree, self._paths, seat.host, self._changed.set)
        self.stream = AssignmentStream()
        self._groups: Mapping[str, int] | None = None
        self._record: Record | None = None
        self._list = OwnList(seat.tree, self._paths, seat.environment, seat.host)
        self._incarnation = ""
        self._era = 0
        self._forgotten = asyncio.Event()  # the host has forgotten the groups of all eras before this one
        self._forgotten.set()
        self._leaving = False
        self._released_s = 0.0
        self._offered: Mapping[str, float] = {}
        self._fenced = FencedGroups()
        self._strangers = Strangers(self._is_given, closing, self._complaint.say)
        self._tasks: list[asyncio.Task[None]] = []
        self.guard = Guard()

    @property
    def plan(self) -> PlanInForce | None:
        if self._record is None:
            return None
        return PlanInForce(self._record.generation, len(self._record.lists.keys() - NO_HOSTS))

    @property
    def leads(self) -> bool:
        return self._leader.leading

    def given(self) -> KeysView[str]:
        return self._handoff.planned

    # -------------------------------------------------------------------------------------------- what the host calls

    async def join(self) -> None:
        """Become a member as soon as the ensemble answers; wait without limit for the first reply.

        Raises:
            HostConflict: a host of the same name is a member, and stays one; choose another `host_name`.
            ForeignTree: the tree holds nodes that EMQ did not write; nothing was changed.
            InvalidSettings: the ensemble refuses the credentials.
        """
        await self._tree.open(self._session)
        loop = asyncio.get_running_loop()  # the loop's time does not leap; the host's clock may
        deadline = loop.time() + 2 * self._tree.timeout_s + 2
        while True:
            try:
                if await self._enter():
                    break
                if loop.time() > deadline:
                    raise await self._announcement.conflict()
            except FATAL:
                raise
            except Exception as exc:
                if isinstance(exc, errors.ClusterUnavailable):
                    self._complaint.say(f"{exc}; trying again")
                else:
                    self.guard.note("membership", "it tries again to join", exc)
                # No session ends while the ensemble is down, or within a time-out after its return.
                deadline = loop.time() + 2 * self._tree.timeout_s + 2
            await asyncio.sleep(RETRY_S)
        loops = {"membership": self._follow, "heartbeat": self._heartbeat.beat, "leader": self._leader.lead}
        self._tasks = self.guard.start(loops)
        for task in self._tasks:
            task.add_done_callback(self.stream.end)

    async def offer(self, quotas: Mapping[str, float], catalog: int = 0, grounds: Grounds = GROUNDS) -> None:
        gone = [group for group in self._offered if group not in quotas]
        async for group in in_slices(gone, 1_000):  # a deleted group that comes back has new, empty queues
            if (epoch := self._handoff.renew(group)) is not None:
                self._fenced.ask(group, epoch, self._clock.now())
                self._changed.set()
        self._offered = quotas
        self._leader.offer(quotas, catalog, grounds)

    async def assignments(self) -> AsyncIterator[Assignment]:
        async for told in self.stream.tell():
            self._handoff.taken(told.groups)
            yield told
            if told.era == self._era:
                self._forgotten.set()

    async def released(self, groups: Iterable[str]) -> None:
        self._released_s = self._clock.now()
        self._handoff.released(groups)
        self._changed.set()

    def fenced(self, group: str, epoch: int, bucket: str = "") -> bool:
        if bucket:
            self._strangers.refused(group, bucket)
            return True
        self._changed.set()
        if self._handoff.refused(group, epoch):  # else the plan took the group away, so the refusal is right
            wait_s = self._fenced.wait(group, epoch, self._clock.now())
            asyncio.get_running_loop().call_later(wait_s, self._changed.set)
            self._strangers.refused(group, group)
        return True

    def _is_given(self, group: str) -> bool:
        is_planned = group in self._handoff.planned and group in self._offered
        return is_planned and self._clock.now() < self.lease.until

    async def hand_over(self, timeout_s: float) -> None:
        """Let the others take over this host's groups, while this host still consumes them; then it holds nothing.

        Returns after `timeout_s` seconds at the latest; at once where this host is the only member.
        """
        self._leaving = True
        self._changed.set()
        with contextlib.suppress(TimeoutError, errors.ClusterUnavailable, errors.ForeignTree):
            async with asyncio.timeout(timeout_s):
                while not self._handoff.is_empty and self._incarnation:
                    if not await self._others.exist():
                        return
                    await asyncio.sleep(0.05)
                # Stay until the last second in which this host started messages is over by the others' clocks. They
                # wait for its end only while they can read this host's node; see `other_members.release_s`.
                others = await self._others.read([records.EVERYBODY])
                await asyncio.sleep(other_members.behind_s(self._heartbeat.ahead_s, others))

    async def leave(self) -> None:
        self._strangers.end()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        self.lease.end()
        await self._tree.close()

    # ------------------------------------------------------------------------------------------------------ the session

    def _session(self, state: protocol.SessionState) -> None:
        if state is protocol.SessionState.SUSPENDED:
            self.lease.suspend()
        elif state is protocol.SessionState.CONNECTED:
            self._heartbeat.connected()
        elif state is protocol.SessionState.LOST:
            self._expire(f"the session of host {self.host} has expired")
        self._changed.set()
        self._leader.session_changed(state)

    def _expire(self, why: str) -> None:
        self._heartbeat.end()
        self._announcement.forget()
        if not self._incarnation:
            return
        log.warning("%s; its groups belong to others now", why)
        self._incarnation = ""
        self._era += 1
        self._forgotten.clear()
        self._handoff.reset()
        self._list.forget()
        self._fenced.clear()
        self._strangers.clear()
        self._assign({})

    async def _enter(self) -> bool:
        """Put this host's nodes into the tree; return False while another host of its name is there.

        This renews the lease. So after the end of a session, the host must have forgotten its groups before.
        """
        await self._forgotten.wait()
        await published_plan.read_record(self._tree, self._paths, self._environment)
        incarnation, session = secrets.token_hex(6), self._tree.session
        # Create the lease's node first: a member that sees this host running may rely on its heartbeats.
        await self._heartbeat.begin(incarnation)
        running = Running(
            incarnation,
            socket.gethostname(),
            os.getpid(),
            self._weight,
            self._clock.now(),
            leaving=self._leaving,
            serves=_named_patterns(self._serves()),
            level=levels.LEVEL,
        )
        if not await self._announcement.make(running):
            self._complaint.say(f"a host named {self.host} is still a member; waiting for its session to end")
            await self._heartbeat.give_up()
            return False
        if self._tree.session != session:
            return False  # the session has ended meanwhile, and the nodes made with it are gone
        self._incarnation = incarnation
        self._complaint.over()
        self._changed.set()
        return True

    # --------------------------------------------------------------------------------------------------------- the plan

    async def _follow(self) -> None:
        """Follow the plan, and tell the cluster which groups this host let go of. Ends by cancellation."""
        while True:
            # The time-out finds changes that no watch reported, at the cost of one small read for each heartbeat.
            await pace.wait(self._changed, self._tree.timeout_s / BEATS)
            self._changed.clear()
            try:
                if not self._incarnation and not await self._enter():
                    self._changed.set()
                    await asyncio.sleep(RETRY_S)
                    continue
                await self._look()
                self._complaint.over()
            except errors.ClusterUnavailable as exc:
                self._complaint.say(f"{exc}; trying again")
                await asyncio.sleep(RETRY_S)
                self._changed.set()
            except protocol.NodeMissing:
                self._expire(f"somebody deleted node {self._paths.host(self.host)}")
                self._changed.set()
            except (errors.ForeignTree, protocol.NodeTooLarge) as exc:
                self._complaint.say(f"{exc}; this host keeps what it has")
                await asyncio.sleep(FOREIGN_S)

    async def _look(self) -> None:
        era = self._era
        record = await published_plan.read_record(self._tree, self._paths, self._environment, self._changed.set)
        if record is not None and record.generation != self._handoff.generation:
            entries = await self._list.read(record, self._incarnation)
            if entries is None or era != self._era:
                self._changed.set()
                return
            await asyncio.sleep(0)
            if era != self._era:
                return
            self._handoff.plan(record.generation, entries)
            self._record = record
            self._fenced.keep(entries)
            await asyncio.sleep(0)
        if self._record is not None:
            members = await self._others.read(self._handoff.awaited())
            if era != self._era:
                return
            self._assign(free := self._free(members), self._handoff.first(free))
        await self._publish()

    def _free(self, members: Mapping[str, Running]) -> dict[str, int]:
        """Return the groups that this host may have now; look again when the next one is free."""
        now_s, next_s = self._clock.now(), math.inf

        def is_free(former: Former, group: str) -> bool:
            nonlocal next_s
            if wait_s := other_members.release_s(former, group, members, now_s):
                next_s = min(next_s, wait_s)
            return not wait_s

        groups = self._handoff.free(is_free)
        if next_s < math.inf:
            asyncio.get_running_loop().call_later(next_s, self._changed.set)
        return groups

    def _assign(self, groups: dict[str, int], first: frozenset[str] = frozenset()) -> None:
        catalog, current = self._record.catalog if self._record is not None else 0, self.stream.current
        if current is not None and groups is self._groups and current[1:3] == (self._era, catalog):
            return  # as nearly always; a comparison would look at each group
        self._groups, assignment = groups, Assignment(groups, self._era, catalog, first)
        if assignment != current:
            self.stream.assign(assignment)

    async def _publish(self) -> None:
        """Announce how far this host has followed the plan, if anything changed."""
        draining = self._handoff.draining
        changes: dict[str, object] = {
            "leaving": self._leaving,
            "released_s": self._released_s,
            "fenced": named(self._fenced.due(self._clock.now())),
            "ahead_s": self._heartbeat.ahead_s,
            "trouble": "" if self._database is None else self._database.unreachable or "",
            "serves": _named_patterns(self._serves()),
        }
        if size_of(draining) <= MAX_NAMED_BYTES:  # else say no more than before
            changes |= {"generation": self._handoff.generation, "draining": tuple(sorted(draining))}
        if not await self._announcement.say(**changes):
            self._changed.set()


def _named_patterns(patterns: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return the patterns to announce; None for all topics, or too many patterns to name."""
    if patterns is None or "*" in patterns or sum(map(len, patterns)) > MAX_PATTERN_BYTES:
        return None
    return tuple(sorted(patterns))
