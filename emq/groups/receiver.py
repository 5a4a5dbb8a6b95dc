"""Long poll: consumers ask for messages and settle them, instead of being called as handlers."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable

from emq.runtime import errors
from emq.storage.message import Message

VISIBILITY_S = 30.0
"""Seconds that a received message may stay unsettled before it is delivered again; see `Delivery.extend`."""

LINGER_S = 0.002
"""Seconds that a request with enough messages waits for more of a burst, up to `max_messages`."""

MAX_MESSAGES = 100


class Delivery:
    """A received message. The consumer settles it with `ack` or `nack`, or asks for more time with `extend`.

    States: *gathered* (part of a request that has not returned yet), *out* (the request has returned; the visibility
    time runs), *settled* (acked or nacked), *late* (not settled in time, or the host is stopping; the message is
    delivered again). A call that comes too late returns False and changes nothing.
    """

    __slots__ = ("_deadline", "_outcome", "holder", "message")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.holder: deque[Delivery] | None = None
        """The receiver's queue in which the delivery waits until a request returns it; None from then on."""
        self._outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def payload(self) -> bytes:
        return self.message.payload

    def ack(self) -> bool:
        """Acknowledge the message: it succeeded."""
        if self._outcome.done():
            return False
        self._outcome.set_result(None)
        return True

    def nack(self, reason: str = "not acknowledged", *, after_s: float | None = None, dead: bool = False) -> bool:
        """Report that the message failed. It is retried by the topic's rules or after `after_s`, or dead at once."""
        if self._outcome.done():
            return False
        self._outcome.set_exception(errors.Reject(reason) if dead else errors.Retry(reason, after_s=after_s))
        return True

    def extend(self, seconds: float = VISIBILITY_S) -> bool:
        """Keep the message unsettled for up to `seconds` from now.

        Raises:
            InvalidSettings: `seconds` is negative, infinite or not a number.
        """
        if not 0 <= seconds < math.inf:  # a timer of NaN would spoil the order of all timers of the process
            raise errors.InvalidSettings(f"seconds {seconds} must be a number of seconds, 0 or more")
        if self._outcome.done():
            return False
        self.stop_clock()
        self._deadline = asyncio.get_running_loop().call_later(seconds, self._miss)
        return True

    def stop_clock(self) -> None:
        """Stop the visibility time: no consumer has the message yet, or it is settled."""
        if self._deadline is not None:
            self._deadline.cancel()

    async def settled(self) -> None:
        """Return when the message is acknowledged; raise the failure when it is nacked or its time is over."""
        try:
            await self._outcome
        finally:
            self.stop_clock()

    def _miss(self) -> None:
        if not self._outcome.done():
            self._outcome.set_exception(errors.Retry("not settled in time by its receiver"))


class _Wait:
    """One `receive` under way."""

    def __init__(self, least: int, most: int) -> None:
        self.least = least
        self.most = most
        self.found: deque[Delivery] = deque()
        self.enough: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.lingering: asyncio.TimerHandle | None = None

    def take(self, delivery: Delivery) -> None:
        self.found.append(delivery)
        if len(self.found) >= self.most:
            self.finish()
        elif len(self.found) >= self.least and self.lingering is None:
            self.lingering = asyncio.get_running_loop().call_later(LINGER_S, self.finish)

    def finish(self) -> None:
        if not self.enough.done():
            self.enough.set_result(None)


class Receiver:
    """Hands out the messages of some topics to consumers, in the order in which they asked.

    A host starts a message only when a consumer waits for one. So quotas, priorities and limits hold for receivers as
    they do for handlers: a consumer waits while the quota is used up. As in Kafka's fetches, a request returns when
    enough messages are there or its time is up.

    Attributes:
        wanted: number of messages that consumers wait for and that are not started yet.
        on_wanted: called with this receiver when a consumer asks for messages.
        unasked: topics whose messages wait for room, for instance until a consumer asks; kept by the dispatcher.
    """

    def __init__(self, visibility_s: float = VISIBILITY_S) -> None:
        """Args:
        visibility_s: seconds for which a received message may stay unsettled, above 0.
        """
        if not 0 < visibility_s < math.inf:
            raise errors.InvalidSettings(f"visibility_s {visibility_s} must be a number of seconds above 0")
        self.visibility_s = visibility_s
        self.wanted = 0
        self.on_wanted: list[Callable[[Receiver], None]] = []
        self.unasked: dict[object, None] = {}
        self._waits: deque[_Wait] = deque()
        self._spare: deque[Delivery] = deque()

    @property
    def is_idle(self) -> bool:
        """True if no consumer waits for messages, and no message waits for a consumer."""
        return not self._waits and not self._spare

    async def receive(
        self, *, min_messages: int = 1, max_messages: int = MAX_MESSAGES, timeout_s: float = 30.0
    ) -> list[Delivery]:
        """Wait until `min_messages` are there or `timeout_s` is over; return at most `max_messages`, perhaps none.

        Safe to cancel: messages gathered so far go to other consumers that wait, or to the next one that asks.

        Raises:
            InvalidSettings: not 1 <= min_messages <= max_messages, or a negative time-out.
        """
        if not 1 <= min_messages <= max_messages:
            raise errors.InvalidSettings(f"min_messages {min_messages} must be from 1 to max_messages {max_messages}")
        if not timeout_s >= 0:
            raise errors.InvalidSettings(f"timeout_s {timeout_s} must be a number of seconds, not negative")
        wait = _Wait(min_messages, max_messages)
        self._waits.append(wait)
        self.wanted += max_messages
        while self._spare and len(wait.found) < max_messages:
            self._give(self._spare.popleft())
        try:
            for call in self.on_wanted:
                call(self)
            await asyncio.wait([wait.enough], timeout=None if timeout_s == math.inf else timeout_s)
        except BaseException:  # cancelled, most of all
            self._close(wait)
            behind = [*self._spare]
            self._spare.clear()
            for delivery in (*wait.found, *behind):
                self._give(delivery)
            raise
        self._close(wait)
        for delivery in wait.found:
            delivery.holder = None
            delivery.extend(self.visibility_s)
        return [*wait.found]

    async def handle(self, message: Message) -> None:
        """Handle a message of the bound topics: give it to the longest waiting consumer, and await its verdict."""
        delivery = Delivery(message)
        self._give(delivery)
        try:
            await delivery.settled()
        finally:
            if delivery.holder is not None:
                self._withdraw(delivery, delivery.holder)

    def _give(self, delivery: Delivery) -> None:
        if not self._waits:
            delivery.holder = self._spare
            delivery.extend(self.visibility_s)
            self._spare.append(delivery)
            return
        self.wanted -= 1
        wait = self._waits[0]
        delivery.holder = wait.found
        delivery.stop_clock()
        wait.take(delivery)
        if len(wait.found) >= wait.most:
            self._waits.popleft()

    def _withdraw(self, delivery: Delivery, holder: deque[Delivery]) -> None:
        """Remove a delivery that ended before a consumer received it: it timed out, or the host is stopping."""
        holder.remove(delivery)
        if holder is not self._spare:
            self.wanted += 1

    def _close(self, wait: _Wait) -> None:
        self.wanted -= wait.most - len(wait.found)
        if wait in self._waits:
            self._waits.remove(wait)
        if wait.lingering is not None:
            wait.lingering.cancel()
