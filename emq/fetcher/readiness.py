"""Which queues are worth reading: those with more in the store and room in their buffer."""

from __future__ import annotations

import asyncio
from collections import deque

from emq.groups.owned import OwnedGroup, OwnedQueue

MOVING = 2_000
"""Most messages of one priority of a group that may wait for their keys while keys move between groups."""


LOOKED_AT = 500
"""Queues that are looked at before the event loop serves everybody else."""


class Readiness:
    """The queues to read next, each at most once, in the order in which they became so.

    A queue comes in when it is acquired, when the store wakes it, and when its buffer has drained to half while the
    store holds more. Idle queues are not in here, and cost nothing.
    """

    def __init__(self) -> None:
        self._queues: deque[OwnedQueue] = deque()
        self._ahead: dict[OwnedQueue, None] = {}
        self._something = asyncio.Event()
        self._typical = 1.0

    def __len__(self) -> int:
        return len(self._queues)

    def woken(self, queue: OwnedQueue) -> None:
        """The store says that the queue received messages.

        It may say so before the answer of an earlier read arrives on another connection, which found the queue empty:
        `woken` outlives that answer.
        """
        queue.more = queue.woken = True
        self.add(queue)

    def drained(self, group: OwnedGroup) -> None:
        """Some of the group's messages were taken; list those of its queues that want a refill."""
        for queue, buffer in zip(group.queues, group.buffers, strict=True):
            if queue.more and not queue.listed and len(buffer) * 2 <= queue.capacity:
                self.add(queue)

    def add(self, queue: OwnedQueue) -> None:
        if queue.listed or not queue.more:
            return
        if wanted(queue) > 0:
            queue.listed = True
            self._queues.append(queue)
            self._something.set()
        elif is_ahead(queue):
            self._ahead[queue] = None

    def checkpointed(self) -> None:
        """Progress was saved: list the queues that were too far ahead of their checkpoint to be read."""
        waiting, self._ahead = self._ahead, {}
        self._add_again(list(waiting))

    def _add_again(self, waiting: list[OwnedQueue]) -> None:
        """A slice at a time: after an outage of the database there are all queues in it."""
        for queue in waiting[:LOOKED_AT]:
            if not queue.group.stopping:
                self.add(queue)
        if len(waiting) > LOOKED_AT:
            asyncio.get_running_loop().call_soon(self._add_again, waiting[LOOKED_AT:])

    def take(self, max_queues: int, max_messages: int) -> list[tuple[OwnedQueue, int]]:
        """Up to `max_queues` queues with what each wants, together about `max_messages`; they stay listed.

        What a queue wants is counted as far as it is expected to be there, so that many nearly empty queues fill one
        read as well as a few full ones. The answer may be empty although there are more: of a topic that was paused
        many queues want nothing any more.
        """
        taken: list[tuple[OwnedQueue, int]] = []
        messages, looked = 0.0, 0
        while self._queues and len(taken) < max_queues and messages < max_messages and looked < LOOKED_AT:
            queue = self._queues.popleft()
            looked += 1
            want = wanted(queue)
            if want > 0:
                queue.woken = False
                taken.append((queue, want))
                messages += min(want, queue.expected or self._typical)
            else:
                queue.listed = False
                if is_ahead(queue):
                    self._ahead[queue] = None
        if not self._queues:
            self._something.clear()
        return taken

    def found(self, queue: OwnedQueue, messages: int, exhausted: bool) -> None:
        """A read of the queue found so many messages; remembered as what the next one will find.

        A queue that was never read is expected to hold what others held lately.
        """
        queue.expected = max(1, messages if exhausted else messages * 2)
        self._typical += (messages - self._typical) / 64

    async def wait(self) -> None:
        """Return once there is something to take."""
        await self._something.wait()


def wanted(queue: OwnedQueue) -> int:
    """Messages that the queue's buffer has room for; none while its group stops or pauses, or too many are held.

    Each priority by itself: what waits for a busy key must not keep a higher priority from being read. Fewer where a
    crash would repeat too many: see `OwnedGroup.allowance`.
    """
    group = queue.group
    owner = group.owner
    if group.stopping or (owner.handler is None and not owner.topic.may_expire):
        return 0  # what may expire is read also of a topic that is paused, or that nothing is bound to
    if group.held >= 4 * queue.capacity and group.held_of(queue.priority) >= _most_held(queue):
        return 0
    room = queue.capacity - len(group.buffers[queue.priority])
    if group.ahead + room <= group.allowance:  # as nearly always
        return room
    return min(room, _left(queue))


def _most_held(queue: OwnedQueue) -> int:
    """How many messages of its priority may wait for their keys.

    More while keys move: right after the change an old message may lie behind new ones, which wait for it.
    """
    most = 4 * queue.capacity
    return most if queue.group.owner.gate is None else max(most, MOVING)


def is_ahead(queue: OwnedQueue) -> bool:
    """Whether the queue may be read no further before its group's progress is saved."""
    return queue.group.ahead + queue.capacity > queue.group.allowance and _left(queue) <= 0


def _left(queue: OwnedQueue) -> int:
    """Other buffers count as full, so that the backlog of a low priority does not keep a higher one from being read.

    Those of lower priorities never count as more than that. After a change to a lower quota they hold more, which must
    not keep a higher priority in the store.
    """
    group, left = queue.group, queue.group.allowance - queue.group.unsaved()
    for other in group.queues:
        held = len(group.buffers[other.priority])
        if other.priority > queue.priority:
            held = min(held, other.capacity)
        if other is not queue:
            left -= max(group.capacity, held)
    return left - len(group.buffers[queue.priority])
