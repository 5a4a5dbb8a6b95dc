"""Starts of one group that begin together, each in a task of its own."""

from __future__ import annotations

from typing import cast

from emq.groups.owned import Handler, OwnedGroup
from emq.message import Message

MOST = 64
"""Messages in volleys after which a stint ends, so that the event loop begins them before it makes more tasks. With
more, each message costs more: the tasks of 256 messages do not fit into a core's nearest caches."""

MANY_WAIT = 1 / 8
"""Share of waiting messages from which a topic uses volleys. In a volley, a message that does not wait costs about an
eighth of what a waiting message costs outside of one."""


class Volley:
    """A grant of starts of one group, for tasks that take one message each when they begin.

    States: *beginning* (the tasks take their first steps, all in one turn of the event loop; the group is out of the
    rotation), *over* (all tasks have begun, the group is back in the rotation, and a handler that runs has waited).

    Attributes:
        handler: the topic's handler when the grant was made.
        left: granted starts that no task has used.
        at: time of the grant, in seconds since the epoch.
        at_us: the same in microseconds; it counts as the start of the messages that wait.
        until_us: time until which the grant may be used.
        begun: messages started.
        quick: those among them whose handler ended while the volley was beginning.
    """

    __slots__ = ("_over", "at", "at_us", "begun", "group", "handler", "left", "quick", "until_us")

    def __init__(self, group: OwnedGroup, size: int, at: float, until_us: int) -> None:
        self.group = group
        self.handler = cast(Handler, group.owner.handler)
        self.left = size
        self.at = at
        self.at_us = int(at * 1e6)
        self.until_us = until_us
        self.begun = self.quick = 0
        self._over = False

    def may_start(self, now_us: int) -> bool:
        """Return True if a task may take a message and start it."""
        group = self.group
        return now_us < self.until_us and not group.stopping and group.owner.handler is self.handler

    def begin(self, message: Message, now_us: int) -> None:
        """A task starts this message."""
        self.left -= 1
        self.begun += 1
        message.started_us = now_us
        if (counts := self.group.owner.deliveries) is not None:
            counts.began(message.ready_us, now_us)

    def end(self, message: Message, now_us: int) -> None:
        """The handler of a message has ended."""
        if (counts := self.group.owner.deliveries) is not None:
            counts.ended(now_us - message.started_us)
        if self._over:
            self.group.owner.pace.ended(self.at_us, now_us)
        else:
            self.quick += 1

    def all_begun(self) -> None:
        """All tasks have taken their first steps; note how many of the handlers wait."""
        self._over = True
        if self.begun:
            owner = self.group.owner
            owner.pace.began(self.at_us, self.begun - self.quick)
            if self.quick:
                owner.pace.passed(self.quick)
            owner.note_waits(1 - self.quick / self.begun)


def suits(group: OwnedGroup) -> bool:
    """Return True if messages of the group may start in a volley, because most of its topic's handlers wait.

    Never for messages that run one at a time or in batches. Never for messages that a consumer asked for: only when the
    handler has begun is it known how many more the consumer wants.
    """
    owner = group.owner
    return owner.waits > MANY_WAIT and owner.batch_size == 1 and owner.receiver is None and not group.serial
