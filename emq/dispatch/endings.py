"""The ends of messages: what takes a started message out of flight, and what ends without a start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from emq.dispatch import retry
from emq.dispatch.handler_tasks import HandlerTasks, is_closed
from emq.dispatch.outcomes import Outcomes
from emq.dispatch.rotation import Rotation
from emq.dispatch.stint import Stint
from emq.groups.context import HostContext
from emq.groups.owned import OwnedGroup, OwnedTopic
from emq.runtime import errors
from emq.storage.message import Message
from emq.trail.events import Recalled


class Endings:
    """Ends messages, and counts them by how they ended.

    A message of a queue that has succeeded leaves flight at once. Any other message stays in flight until the store has
    taken its outcome. A bug on the way costs a new start of the message's group, but no place in flight.

    Attributes:
        succeeded: messages whose handlers returned.
        failed: those whose handlers failed.
        expired: those that had outlived their time to live.
    """

    def __init__(self, outcomes: Outcomes, context: HostContext, rotation: Rotation, tasks: HandlerTasks) -> None:
        self._clock, self._events, self._trail = context.clock, context.events, context.trail
        self._outcomes, self._rotation, self._flight = outcomes, rotation, rotation.flight
        self._tasks = tasks
        self.succeeded = self.failed = self.expired = 0

    def succeed(self, group: OwnedGroup, messages: Iterable[Message], now_us: int) -> None:
        """Finish or acknowledge messages in flight whose handlers have returned.

        Messages that follow each other in their queue are finished together.
        """
        trail = self._trail if self._trail.enabled else None
        left = size = first = 0
        priority = upto = -1
        for message in messages:
            self.succeeded += 1
            try:
                if trail is not None:
                    trail.settled(message, now_us)
                if message.offset < 0:
                    if message.key is not None:
                        # The handler is done: the key's next message need not wait for the acknowledgement.
                        self._free_key(group, message.key)
                    self._outcomes.acknowledge(group, message)
                    self._flight.weigh(group, -message.size)
                    continue
                if message.offset != upto or message.priority != priority:
                    if first < upto:
                        self._finish(group, priority, first, upto)
                    priority, first = message.priority, message.offset
                upto = message.offset + 1
            except Exception as bug:
                self._broke(group, message, bug)
                continue
            if message.key is not None:
                self.leave(group, message)
            else:
                left += 1
                size += message.size
        try:
            if first < upto:
                self._finish(group, priority, first, upto)
        except Exception as bug:
            self._events.broken("dispatch", group, bug)
        if left:
            self._rotation.left(group, left, size)

    def finish_run(self, group: OwnedGroup, stint: Stint, upto: int) -> None:
        """Finish the messages of a visit's run before the offset `upto`, if there are any; they were not in flight."""
        if stint.first < upto:
            self.succeeded += upto - stint.first
            self._finish(group, stint.priority, stint.first, upto)

    def acknowledge(self, group: OwnedGroup, message: Message) -> None:
        """Acknowledge a message of a lane or slot whose handler has returned, and that took no place in flight."""
        self.succeeded += 1
        self._outcomes.acknowledge(group, message)
        self._flight.enter(group, 1, 0)

    def withdraw(self, group: OwnedGroup, message: Message) -> None:
        """End a message of a queue or lane that was read and did not start."""
        if self._trail.enabled:
            now_us, topic = self._clock.now_us(), group.owner.topic.name
            self._trail.record(Recalled(now_us, topic, group.index, message.priority, message.uid))
        if message.offset >= 0:
            self._finish(group, message.priority, message.offset, message.offset + 1)
        else:
            self._outcomes.acknowledge(group, message)
            self._flight.enter(group, 1, 0)

    def fail(self, group: OwnedGroup, message: Message, failure: BaseException) -> None:
        """Settle a message in flight whose handler has failed, or put back one that the handler gave back."""
        try:
            given_back = retry.sole(failure)
            if isinstance(given_back, errors.GiveBack):
                self._give_back(group, message, given_back)
                return
            self.failed += 1
            group.owner.deliveries.count_failed()
            self._outcomes.failed(group, message, failure)
        except Exception as bug:
            self._broke(group, message, bug)

    def end_batch(self, group: OwnedGroup, batch: Sequence[Message], failures: Mapping[str, BaseException]) -> None:
        """End the messages of one call; `failures`: errors by identity."""
        now_us = self._clock.now_us()
        note_ended(group.owner, batch[0].started_us, now_us, len(batch))
        if failures:
            for message in batch:
                if (reason := failures.get(message.uid)) is not None:
                    self.fail(group, message, reason)
            batch = [message for message in batch if message.uid not in failures]
        self.succeed(group, batch, now_us)

    def _give_back(self, group: OwnedGroup, message: Message, failure: errors.GiveBack) -> None:
        """Put a message in flight back to its place, uncounted; the host pauses its topic, and this comes first."""
        self._events.given_back(group, message, failure)
        if group.owner.groups.get(group.index) is group:  # else the group's next owner delivers the message
            group.put_back(message, self._clock.now_us())
            self._events.ready(group)
        self._rotation.left(group, 1, message.size)

    def expire(self, group: OwnedGroup, message: Message) -> None:
        """Dead-letter a message that has expired and was taken out of its group."""
        self.expired += 1
        self._flight.enter(group, 1, message.size)
        try:
            self._outcomes.expired(group, message)
        except Exception as bug:
            self._broke(group, message, bug)

    def expire_taken(self, group: OwnedGroup, message: Message) -> None:
        """Dead-letter a message that had expired when it was taken to be started."""
        if message.key is not None:
            group.finish_key(message.key)
        self.expire(group, message)

    def damaged(self, group: OwnedGroup, message: Message, reason: str) -> None:
        """Dead-letter a message that could not be decoded; its payload is the stored record."""
        self._flight.enter(group, 1, message.size)
        try:
            self._outcomes.damaged(group, message, reason)
        except Exception as bug:
            self._broke(group, message, bug)

    def acknowledged(self, group: OwnedGroup, n: int) -> None:
        """The store knows that `n` messages of the group's slot or lane are done; their keys are free already."""
        self._rotation.left(group, n, 0)

    def settled(self, group: OwnedGroup, message: Message) -> None:
        """Finish a message that has succeeded, or whose retry or dead letter the store has recorded."""
        try:
            if message.offset >= 0:
                self._finish(group, message.priority, message.offset, message.offset + 1)
        except Exception as bug:
            self._broke(group, message, bug)
        else:
            self.leave(group, message)

    def leave(self, group: OwnedGroup, message: Message) -> None:
        """Count a message as in flight no more. If it is unfinished, the next owner of the group delivers it again."""
        try:
            if message.key is not None and message.started_us:
                self._free_key(group, message.key)
        except Exception as bug:
            self._events.broken("dispatch", group, bug)
        finally:
            self._rotation.left(group, 1, message.size)

    def breaks_off(self, group: OwnedGroup, messages: Sequence[Message], failure: BaseException) -> bool:
        """Return True if the host or Python has ended a call, whose handler has not failed: raise its error on.

        The messages in flight leave it unfinished, and the group's next owner delivers them again.
        """
        if is_closed(failure):
            return True
        if not self._tasks.are_cancelled(failure):
            return False
        for message in messages:
            self.leave(group, message)
        return True

    def _finish(self, group: OwnedGroup, priority: int, first: int, upto: int) -> None:
        """Finish the offsets [first, upto) of a queue."""
        queue = group.queues[priority]
        queue.tracker.finish(first, upto)
        if not queue.dirty:
            queue.mark_dirty()
            self._events.dirty(queue)

    def _free_key(self, group: OwnedGroup, key: str) -> None:
        group.finish_key(key)
        if group.buffered:
            self._rotation.ready(group)

    def _broke(self, group: OwnedGroup, message: Message, bug: Exception) -> None:
        """A bug kept a message from its end: start the group again; nobody will tell of this message any more."""
        self.leave(group, message)
        self._events.broken("dispatch", group, bug)


def note_ended(owner: OwnedTopic, began_us: int, now_us: int, n: int = 1) -> None:
    """Note how long a call of the topic's handler with `n` messages took, which were in flight meanwhile."""
    owner.pace.ended(began_us, now_us, n)
    owner.deliveries.ended(now_us - began_us, n)
