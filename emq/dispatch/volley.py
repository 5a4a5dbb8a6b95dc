"""Starts of one group that begin together, each in a task of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

from emq.dispatch.endings import Endings
from emq.dispatch.flight import Flight
from emq.dispatch.handler_tasks import HandlerTasks
from emq.dispatch.rotation import Rotation
from emq.dispatch.starts import Starts
from emq.groups.context import HostContext
from emq.groups.owned import Handler, OwnedGroup, OwnedTopic
from emq.storage.message import Message

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
        is_over: all tasks have begun.
    """

    __slots__ = ("_bytes", "_quick", "_size", "at", "at_us", "group", "handler", "is_over", "left", "until_us")

    def __init__(self, group: OwnedGroup, size: int, at: float, until_us: int) -> None:
        self.group = group
        self.handler = cast(Handler, group.owner.handler)
        self.left = self._size = size
        self.at = at
        self.at_us = int(at * 1e6)
        self.until_us = until_us
        self._bytes = 0
        self._quick = 0  # messages whose handlers ended while the volley was beginning
        self.is_over = False

    def may_start(self, now_us: int) -> bool:
        """Return True if the grant may still be used."""
        group = self.group
        return now_us < self.until_us and not group.stopping and group.owner.handler is self.handler

    def use(self, size: int) -> None:
        """Use up a start, whose message of `size` bytes was taken: from now on, the message has the place in flight."""
        self.left -= 1
        self._bytes += size

    def revoke(self) -> None:
        """Let no task start a message any more."""
        self.until_us = 0

    def end(self, n: int, now_us: int) -> None:
        """The handlers of `n` messages have ended, in this turn of the event loop."""
        if self.is_over:
            self.group.owner.pace.ended(self.at_us, now_us, n)
        else:
            self._quick += n

    def all_begun(self, flight: Flight) -> None:
        """All tasks have taken their first steps; note how many of the handlers wait."""
        self.is_over = True
        flight.weigh(self.group, self._bytes)
        if begun := self._size - self.left:
            owner = self.group.owner
            owner.pace.began(self.at_us, begun - self._quick)
            if self._quick:
                owner.pace.passed(self._quick)
            owner.note_waits(1 - self._quick / begun)


class Volleys:
    """The volleys of a host that have not begun."""

    def __init__(
        self, context: HostContext, rotation: Rotation, starts: Starts, endings: Endings, tasks: HandlerTasks
    ) -> None:
        self._clock, self._events = context.clock, context.events
        self._rotation, self._flight = rotation, rotation.flight
        self._starts, self._endings, self._tasks = starts, endings, tasks
        self._fired: list[Volley] = []  # of the stint that runs
        self._beginning: list[Volley] = []  # those whose tasks take their first steps now
        self._succeeded: dict[Volley, list[Message]] = {}  # messages whose handlers have returned in this turn

    def __len__(self) -> int:
        return len(self._fired) + len(self._beginning)

    def fire(self, group: OwnedGroup, size: int, now: float) -> None:
        """Use a grant of the time `now`; the group goes on with the rotation once all tasks have begun."""
        volley = Volley(group, size, now, int(self._starts.until(group, now) * 1e6))
        self._fired.append(volley)
        self._flight.enter(group, size, 0)
        self._tasks.begin(*[self._single(volley) for _ in range(size)])

    def revoke(self, owner: OwnedTopic) -> None:
        """Let no message of the topic start by the grants that it has; they are given back soon."""
        for volley in (*self._fired, *self._beginning):
            if volley.group.owner is owner:
                volley.revoke()

    def follow(self) -> None:
        """The stint is over: have `_begun` run after the first steps of the tasks of its volleys."""
        if self._fired:
            volleys, self._fired = self._fired, []
            self._beginning += volleys
            asyncio.get_running_loop().call_soon(self._begun, volleys)

    async def _single(self, volley: Volley) -> None:
        """Take one message and start it, in a task of its own."""
        group = volley.group
        try:
            now_us = self._clock.now_us()
            if not self._rotation.accepting or not volley.may_start(now_us):
                return
            message = self._starts.take(group, now_us)
            if message is None:
                return
            volley.use(message.size)
            try:  # from here on, only the handler may raise: the message must leave flight
                await volley.handler(message)
            except BaseException as failure:  # of any kind
                if self._endings.breaks_off(group, (message,), failure):
                    raise
                now_us = self._count(group, message)
                volley.end(1, now_us)
                self._endings.fail(group, message, failure)
            else:
                if group.owner.deliveries.enabled:
                    self._count(group, message)
                if message.key is None and volley.is_over:
                    self._succeed_soon(volley, message)
                else:  # at once: the next message of the key may have a higher priority than the next start
                    self._succeed(volley, (message,))
        except Exception as bug:  # a bug of EMQ: failures of handlers are dealt with above
            self._events.broken("dispatch", group, bug)
        finally:
            self._tasks.running.discard(asyncio.current_task())

    def _count(self, group: OwnedGroup, message: Message) -> int:
        """Count the call of a handler that has ended; return the time."""
        now_us = self._clock.now_us()
        group.owner.deliveries.ended(now_us - message.started_us)
        return now_us

    def _succeed_soon(self, volley: Volley, message: Message) -> None:
        """End the message with all that end in this turn of the event loop: many begin together and end together."""
        succeeded = self._succeeded
        if (messages := succeeded.get(volley)) is not None:
            messages.append(message)
            return
        if not succeeded:
            asyncio.get_running_loop().call_soon(self._succeed_all)
        succeeded[volley] = [message]

    def _succeed_all(self) -> None:
        succeeded, self._succeeded = self._succeeded, {}
        for volley, messages in succeeded.items():
            self._succeed(volley, messages)

    def _succeed(self, volley: Volley, messages: Sequence[Message]) -> None:
        """The handlers of these messages have returned."""
        now_us = self._clock.now_us()
        volley.end(len(messages), now_us)
        self._endings.succeed(volley.group, messages, now_us)

    def _begun(self, volleys: list[Volley]) -> None:
        """All tasks of the volleys have taken their first steps: give back the starts that found no message."""
        for volley in volleys:
            try:
                self._beginning.remove(volley)
                volley.all_begun(self._flight)
                if volley.left:
                    self._flight.leave(volley.group, volley.left, 0)
                    self._rotation.release(volley.group, volley.left, volley.at)
                self._rotation.go_on(volley.group)
            except Exception as bug:  # no loop would tell of it
                self._events.broken("dispatch", volley.group, bug)
        self._rotation.wake()


def suits(group: OwnedGroup) -> bool:
    """Return True if messages of the group may start in a volley, because most of its topic's handlers wait.

    Never for messages that run one at a time or in batches. Never for messages that a consumer asked for: only when the
    handler has begun is it known how many more the consumer wants.
    """
    owner = group.owner
    return owner.waits > MANY_WAIT and owner.batch_size == 1 and owner.receiver is None and not group.serial
