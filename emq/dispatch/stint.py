"""One pass of the main loop through the rotation."""

from __future__ import annotations

from emq.groups.owned import OwnedGroup, OwnedQueue
from emq.storage.message import Message


class Stint:
    """Goes through the rotation and visits one group after the other, until a handler suspends it or its time is over.

    Attributes:
        group: the group that it visits, or has visited last.
        granted: starts that the group's counter has granted for the visit, and that are not used.
        granted_at: time of the grant, in seconds since the epoch.
        running: the message with the visit's handler, in flight only once the handler suspends the stint; None for a
            batch, which is in flight from its start on.
        started_before: number of messages that the host had started before the visit.
        queue: the queue of the visit's run: messages that follow each other in the queue and have succeeded; None while
            there is no run.
        first: offset of the run's first message.
    """

    __slots__ = ("first", "granted", "granted_at", "group", "queue", "running", "started_before")

    def __init__(self) -> None:
        self.group: OwnedGroup | None = None
        self.granted = 0
        self.granted_at = 0.0
        self.running: Message | None = None
        self.started_before = 0
        self.queue: OwnedQueue | None = None
        self.first = 0

    def begin_run(self, group: OwnedGroup, priority: int, offset: int) -> None:
        """Begin a run with a message that has not ended yet; none with a message of a lane or slot (offset -1)."""
        if offset >= 0:
            self.queue, self.first = group.queues[priority], offset

    def end_run(self) -> OwnedQueue | None:
        """Return the queue of the run, which is over."""
        queue, self.queue = self.queue, None
        return queue
