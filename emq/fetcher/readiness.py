"""Which queues are worth reading: those with more in the store and room in their buffer."""

from __future__ import annotations

import asyncio
from collections import deque

from emq.owned import OwnedGroup, OwnedQueue


class Readiness:
    """The queues to read next, each at most once, in the order in which they became so.

    A queue comes in when it is acquired, when the store wakes it, and when its buffer has drained to half while the
    store holds more. Idle queues are not in here, and cost nothing.
    """

    def __init__(self) -> None:
        self._queues: deque[OwnedQueue] = deque()
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
        if not queue.listed and queue.more and wanted(queue) > 0:
            queue.listed = True
            self._queues.append(queue)
            self._something.set()

    def take(self, max_queues: int, max_messages: int) -> list[tuple[OwnedQueue, int]]:
        """Up to `max_queues` queues with what each wants, together about `max_messages`; they stay listed.

        What a queue wants is counted as far as it is expected to be there, so that many nearly empty queues fill one
        read as well as a few full ones.
        """
        taken: list[tuple[OwnedQueue, int]] = []
        messages = 0.0
        while self._queues and len(taken) < max_queues and messages < max_messages:
            queue = self._queues.popleft()
            want = wanted(queue)
            if want > 0:
                queue.woken = False
                taken.append((queue, want))
                messages += min(want, queue.expected or self._typical)
            else:
                queue.listed = False
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

    Each priority by itself: what waits for a busy key must not keep a higher priority from being read.
    """
    group = queue.group
    if group.stopping or group.owner.handler is None:
        return 0
    if group.held >= 4 * queue.capacity and group.held_of(queue.priority) >= 4 * queue.capacity:
        return 0
    return queue.capacity - len(group.buffers[queue.priority])
