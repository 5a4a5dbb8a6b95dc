"""The starts of messages: what is the same however a call of a handler begins."""

from __future__ import annotations

from emq.dispatch.endings import Endings
from emq.groups.context import HostContext
from emq.groups.owned import OwnedGroup
from emq.storage.message import Message


class Starts:
    """Takes the messages that start out of their groups, and counts them.

    Attributes:
        started: messages started.
    """

    def __init__(self, context: HostContext, endings: Endings) -> None:
        self._lease, self._trail = context.lease, context.trail
        self._endings = endings
        self.started = 0

    def until(self, group: OwnedGroup, now: float) -> float:
        """Return the time until which starts that the group's counter granted at `now` may be used.

        The lease may end meanwhile, also because the process was stopped while the clock went on.
        """
        return min(group.counter.valid_until(now), self._lease.until)

    def take(self, group: OwnedGroup, now_us: int) -> Message | None:
        """Take the group's next message, to start it now; None if there is none.

        A message that has expired is dead-lettered instead. `Dispatcher._visit` does the same in lines of its own.
        """
        while (message := group.take(now_us)) is not None:
            if 0 < message.expires_us <= now_us:
                self._endings.expire_taken(group, message)
                continue
            message.started_us = now_us
            self.started += 1
            if (counts := group.owner.deliveries).enabled:
                counts.began(message.ready_us, now_us)
            if self._trail.enabled:
                self._trail.started(message, group.epoch)
            return message
        return None
