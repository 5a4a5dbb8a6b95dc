"""Passes the reports of a host's parts on, each to the one or two parts that it concerns."""

from __future__ import annotations

from emq.groups.events import GroupLoop, HostEvents
from emq.groups.owned import OwnedGroup, OwnedQueue
from emq.host.assignments import Assignments
from emq.host.group_work import GroupWork
from emq.host.passage_loop import PassageLoop
from emq.host.throttles import Throttles
from emq.runtime import errors
from emq.runtime.guard import Guard
from emq.storage.message import Message


class Reports(HostEvents):
    """Connects the parts of a host by their reports.

    The parts report to each other in a circle, so this object is made first, and `connect` gives it the parts. No part
    may report before that.
    """

    _work: GroupWork
    _assignments: Assignments
    _passage: PassageLoop
    _throttles: Throttles
    _guard: Guard

    def connect(
        self, work: GroupWork, assignments: Assignments, passage: PassageLoop, throttles: Throttles, guard: Guard
    ) -> None:
        """Pass reports on to these parts from now on; call this before a loop starts."""
        self._work, self._assignments, self._passage = work, assignments, passage
        self._throttles, self._guard = throttles, guard

    def ready(self, group: OwnedGroup) -> None:
        if group.expires_us:
            self._work.expiry.watch(group)
        self._work.dispatcher.ready(group)

    def claimed(self, group: OwnedGroup, id_: str) -> None:
        self._work.settler.claimed(group, id_)
        self._work.firing.claimed(group, id_)

    def schedule_due(self, group: OwnedGroup, message: Message) -> None:
        self._work.firing.put(group, message)

    def moved(self, group: OwnedGroup, message: Message, body: bytes, now_ms: int) -> None:
        self._work.forwarder.put(group, message, body, now_ms)

    def damaged(self, group: OwnedGroup, message: Message, reason: str) -> None:
        self._work.endings.damaged(group, message, reason)

    def unstarted(self, group: OwnedGroup, message: Message, *, withdrawn: bool = False) -> None:
        endings = self._work.endings
        end = endings.withdraw if withdrawn else endings.expire
        end(group, message)

    def drained(self, group: OwnedGroup) -> None:
        if group.slot is None:
            self._work.readiness.drained(group)
        else:
            self._work.slots.drained(group.slot)

    def acknowledged(self, group: OwnedGroup, n: int) -> None:
        self._work.endings.acknowledged(group, n)

    def settled(self, group: OwnedGroup, message: Message) -> None:
        self._work.endings.settled(group, message)

    def given_back(self, group: OwnedGroup, message: Message, failure: errors.GiveBack) -> None:
        self._throttles.given_back(group, message, failure)

    def refused(self, group: OwnedGroup, message: Message) -> None:
        self._work.endings.leave(group, message)

    def due(self, name: str, due_ms: int) -> None:
        if name.endswith("/"):  # the address of a slot
            self._work.slots.due(name, due_ms)
        else:
            self._work.lanes.at(name, due_ms)

    def dirty(self, queue: OwnedQueue) -> None:
        self._work.checkpointer.dirty(queue)

    def saved(self) -> None:
        self._work.readiness.checkpointed()

    def doubted(self, group: OwnedGroup) -> None:
        self._work.lanes.doubted(group)
        self._passage.doubted(group)

    def lost(self, group: OwnedGroup) -> None:
        self._assignments.fenced(group)

    def ahead(self, group: OwnedGroup, layout: int) -> None:
        self._passage.ahead(group.owner.topic.name, layout)

    def shrunk(self, group: OwnedGroup) -> None:
        self._assignments.shrunk(group)

    def broken(self, loop: GroupLoop, group: OwnedGroup, failure: Exception) -> None:
        """Take the group out of all loops and acquire it again from the store."""
        self._guard.note(loop, "the group starts again from its checkpoint", failure, group.name)
        self._assignments.shrunk(group)
