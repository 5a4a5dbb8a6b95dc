"""One pass of the main loop through the rotation."""

from __future__ import annotations

from emq.groups.owned import OwnedGroup
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
        priority, first: the queue and the first offset of the visit's run: messages that follow each other in a queue
            and have succeeded, but perhaps the last. -1 for messages of a lane or slot.
        taken: messages that the visit has taken and not started, the next one last.
    """

    __slots__ = ("first", "granted", "granted_at", "group", "priority", "running", "started_before", "taken")

    def __init__(self) -> None:
        self.group: OwnedGroup | None = None
        self.granted = 0
        self.granted_at = 0.0
        self.running: Message | None = None
        self.started_before = 0
        self.priority = self.first = -1
        self.taken: list[Message] = []

    def begin_run(self, priority: int, offset: int) -> None:
        """Begin a run with a message that starts now."""
        self.priority, self.first = priority, offset

    def return_taken(self) -> None:
        """Return the messages that were taken and not started to the group's buffer."""
        if self.group is not None and self.taken:
            if self.group.stopping:
                self.taken.clear()  # as the group's buffers are cleared; the store has the messages
            else:
                self.group.return_run(self.taken)
