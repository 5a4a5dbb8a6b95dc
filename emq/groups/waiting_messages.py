"""The messages of a group that were read or claimed and not started, in buffers and behind keys that run."""

from __future__ import annotations

import bisect
import heapq
import math
from collections import Counter, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol

from emq.groups.capacity import Gauge
from emq.groups.nothing import writable
from emq.groups.priority import STRICT, Policy
from emq.groups.slot_state import SlotState
from emq.storage.message import Message
from emq.storage.slot_store import SlotKind
from emq.topics.key_layouts import KeyGate


class Gated(Protocol):
    """The part of a topic that its waiting messages need.

    Attributes:
        gate: holds back messages whose keys are moving between groups; None while no keys move.
    """

    gate: KeyGate | None


@dataclass(slots=True, eq=False, repr=False)
class WaitingMessages:
    """The messages of a group that wait to start, and the keys that they wait for.

    Attributes:
        owner: the group's topic.
        index: the group's number in its topic.
        policy: decides which priority is next.
        gauge: counts the messages here, together with those of the host's other groups.
        slot: of a sorted topic, the slot that the group claims from; None for a log topic.
        buffers: messages that are ready to start, one buffer for each priority, highest first; one for a sorted topic.
            `NOTHING` stands for a buffer that never held a message.
        buffered: messages in `buffers`.
        running: keys of the messages in flight, each with the layout by which its message came here.
        blocked: messages that wait for their key (another message of the key runs, or the gate is closed), by
            (priority, key).
        held: number of messages in `blocked`.
        released: messages that went from `blocked` back to a buffer and were not taken yet, by (priority, key).
        retries: number of buffered and held messages that were claimed from the lane, by priority.
        mean_bytes: bytes of one message, averaged over the last ones; 0 before the first.
        expires_us: when the first message here expires, microseconds since the epoch; 0 if none can expire.
    """

    owner: Gated = field(init=False)
    slot: SlotState | None = field(init=False)
    index: int
    policy: Policy
    gauge: Gauge
    buffers: list[deque[Message]] = field(default_factory=list)
    buffered: int = 0
    running: dict[str, int] = field(default_factory=dict)
    blocked: dict[tuple[int, str], deque[Message]] = field(default_factory=dict)
    held: int = 0
    released: dict[tuple[int, str], Message] = field(default_factory=dict)
    retries: Counter[int] = field(default_factory=Counter)
    mean_bytes: float = 0.0
    expires_us: int = 0

    def push(self, priority: int, messages: list[Message]) -> None:
        """Buffer messages of one priority, in order; they are ready to start from now on.

        In a topic by numeric priority, the messages are merged into the buffer by their scores.
        """
        buffer = self.buffers[priority] = writable(self.buffers[priority])
        if buffer and is_by_score(self) and messages[0].score > buffer[-1].score:
            merged = list(heapq.merge(buffer, messages, key=_by_score))
            buffer.clear()
            buffer.extend(merged)
        else:
            buffer.extend(messages)
        n, size = len(messages), sum([m.size for m in messages])
        self.buffered += n
        self.gauge.messages += n
        self.gauge.bytes += size
        if n:
            weight = min(1.0, n / 16) if self.mean_bytes else 1.0
            self.mean_bytes += (size / n - self.mean_bytes) * weight

    def take(self, now_us: int) -> Message | None:
        """Take out the next message to start, by the topic's priority policy; None if there is none.

        Messages whose key is running, or that the gate holds back, go to `blocked` instead.
        """
        while self.buffered:
            if self.policy is STRICT:  # its `choose`, without the call: this runs for each message
                for buffer in self.buffers:
                    if buffer:
                        break
            else:
                buffer = self.buffers[self.policy.choose(self.buffers, now_us)]
            message = buffer.popleft()
            self.buffered -= 1
            if message.key is not None:
                came_back = bool(self.released) and self._came_back(message)
                gate = self.owner.gate
                if message.key in self.running or (gate is not None and gate.holds(message, self.index)):
                    self._block(message, came_back)
                    continue
                self.running[message.key] = message.layout
            if message.offset < 0:
                self.count(message, -1)
            gauge = self.gauge
            gauge.messages -= 1
            gauge.bytes -= message.size
            return message
        return None

    def take_run(self, message: Message, most: int, run: list[Message]) -> None:
        """Take out up to `most` messages that follow `message` in its queue, and put them into the empty list `run`.

        The next message comes last in `run`. These are the messages that the next calls of `take` would return: they
        have no key and no expiry. `message` must be such a message, too, and must never have been put back; then no
        message behind it was put back. If the caller has to wait, it gives the messages that did not start to
        `return_run`.
        """
        if self.policy is not STRICT:
            return
        buffer, offset, size = self.buffers[message.priority], message.offset, 0
        for _ in range(min(most, len(buffer))):
            m, offset = buffer[0], offset + 1
            if m.offset != offset or m.key is not None or m.expires_us:
                break
            run.append(buffer.popleft())
            size += m.size
        run.reverse()
        self.buffered -= len(run)
        self.gauge.messages -= len(run)
        self.gauge.bytes -= size

    def return_run(self, run: list[Message]) -> None:
        """Return the messages of `run` to their places, before those that were never taken, and empty it."""
        buffer = self.buffers[run[0].priority] = writable(self.buffers[run[0].priority])
        put_back = next((at for at, message in enumerate(buffer) if not message.started_us), len(buffer))
        buffer.rotate(-put_back)
        buffer.extendleft(run)
        buffer.rotate(put_back)
        self.buffered += len(run)
        self.gauge.messages += len(run)
        self.gauge.bytes += sum([message.size for message in run])
        run.clear()

    def put_back(self, message: Message, now_us: int) -> None:
        """Put a message that was taken back to its place, ahead of those behind it and of the messages of its key."""
        buffer = self.buffers[message.priority] = writable(self.buffers[message.priority])
        message.ready_us = now_us
        if is_by_score(self):
            bisect.insort_left(buffer, message, key=_by_score)
        else:
            # Those that were put back stand in the order of their starts, before those that were never taken.
            bisect.insort_left(buffer, message, key=lambda each: (each.started_us or math.inf, each.offset))
        self.buffered += 1
        self.gauge.messages += 1
        self.gauge.bytes += message.size
        if message.offset < 0:
            self.count(message)
        if message.expires_us:
            self.note_expiry(message.expires_us)
        if message.key is not None:
            self.running.pop(message.key, None)
            self.released[message.priority, message.key] = message

    def take_expired(self, now_us: int) -> list[Message]:
        """Take out the expired messages, and set `expires_us` to the next expiry."""
        places = [*self.buffers, *self.blocked.values()]
        expired = [m for waiting in places for m in _taken(waiting, lambda m: 0 < m.expires_us <= now_us)]
        self.expires_us = min((m.expires_us for waiting in places for m in waiting if m.expires_us), default=0)
        self.blocked = {place: waiting for place, waiting in self.blocked.items() if waiting}
        if expired:
            self.buffered = sum(map(len, self.buffers))
            self.held = sum(map(len, self.blocked.values()))
            self._left(expired)
            self.release_idle_keys()
        return expired

    def note_expiry(self, at_us: int) -> None:
        """Note that a new message expires at `at_us`, in microseconds since the epoch."""
        self.expires_us = min(self.expires_us or at_us, at_us)

    def count(self, message: Message, by: int = 1) -> None:
        """Count a message that was claimed from the lane or the slot and waits here; `by` is -1 once it does not."""
        if message.member is None:
            self.retries[message.priority] += by
        elif self.slot is not None:
            self.slot.buffered += by

    def oldest_layout(self) -> float:
        """Return the oldest layout of the messages with a key that run or wait here; infinity if there are none.

        Messages that wait in the lane for their retry do not count.
        """
        messages = (m for waiting in (*self.buffers, *self.blocked.values()) for m in waiting)
        waiting = min((m.layout for m in messages if m.key is not None), default=math.inf)
        return min(waiting, *self.running.values()) if self.running else waiting

    def take_members(self) -> list[Message]:
        """Take out the buffered messages that were claimed from the slot; messages that wait for a running key stay."""
        taken: list[Message] = []
        while members := _taken(self.buffers[0], _is_member):
            self.buffered -= len(members)
            self._left(members)
            taken += members
            if self.held:
                self.release_idle_keys()
        return taken

    def waiting_members(self) -> list[Message]:
        """Return the messages that were claimed from the slot and not started."""
        returning = self.slot.returning if self.slot is not None else []
        return returning + [m for waiting in (*self.buffers, *self.blocked.values()) for m in waiting if _is_member(m)]

    def discard(self) -> None:
        """Forget the buffered messages; they are still in the store."""
        for waiting in (*self.buffers, *self.blocked.values()):
            self._left(waiting)
            waiting.clear()
        self.blocked.clear()
        self.released.clear()
        self.retries.clear()
        self.buffered = self.held = self.expires_us = 0
        if self.slot is not None:
            self.slot.forget()

    def finish_key(self, key: str) -> None:
        """Release a key whose message is settled."""
        self.release_key(key)

    def take_blocked(self, key: str) -> list[Message]:
        """Take out the messages that were claimed from the slot and wait for that key."""
        blocked = self.blocked.get((0, key), deque())
        taken = _taken(blocked, _is_member)
        if not blocked:
            self.blocked.pop((0, key), None)
        self.held -= len(taken)
        self._left(taken)
        return taken

    def release_key(self, key: str) -> None:
        """Make the next message of that key ready in each priority, ahead of later messages.

        In a topic by numeric priority, the message takes its place by its score.
        """
        self.running.pop(key, None)
        if self.held:
            for priority in range(len(self.buffers)):
                waiting = self.blocked.get((priority, key))
                # One at a time: a second one would get in front of the first while another priority has its turn.
                if waiting and (priority, key) not in self.released:
                    message = self.released[priority, key] = waiting.popleft()
                    buffer = self.buffers[priority] = writable(self.buffers[priority])
                    if is_by_score(self):
                        bisect.insort_left(buffer, message, key=_by_score)
                    else:
                        buffer.appendleft(message)
                    self.buffered += 1
                    self.held -= 1
                    if not waiting:
                        del self.blocked[priority, key]

    def let_through(self, former: KeyGate, now_us: int) -> None:
        """Note that messages that `former`, the gate until now, held back became ready at `now_us`.

        Otherwise a lower priority that was started meanwhile would seem to have overtaken them.
        """
        gate = self.owner.gate
        for waiting in (*self.blocked.values(), *([m] for m in self.released.values())):
            # All have the same key, and the oldest layout comes first: if the gate holds the first, it holds the rest.
            if gate is None or not gate.holds(waiting[0], self.index):
                for m in waiting:
                    if former.holds(m, self.index):
                        m.ready_us = now_us

    def release_idle_keys(self) -> None:
        """Make the next message of each key that does not run ready.

        Call this after a released message has expired, since the messages behind it would wait for ever, and after a
        change of the topic's gate.
        """
        for _, key in list(self.blocked):
            if key not in self.running:
                self.finish_key(key)

    def _left(self, messages: Collection[Message]) -> None:
        """Note that these messages were taken out, and not to be started."""
        self.gauge.messages -= len(messages)
        self.gauge.bytes -= sum([m.size for m in messages])
        for m in messages:
            self._came_back(m)
            if m.offset < 0:
                self.count(m, -1)

    def _came_back(self, message: Message) -> bool:
        """Remove the message from `released`; return whether it was there."""
        place = message.priority, message.key or ""
        if self.released.get(place) is not message:
            return False
        del self.released[place]
        return True

    def _block(self, message: Message, came_back: bool) -> None:
        waiting = self.blocked.setdefault((message.priority, message.key or ""), deque())
        self.held += 1
        if is_by_score(self):
            bisect.insort(waiting, message, key=_by_score)
            return
        if (
            self.owner.gate is not None
        ):  # a message that the gate holds waits for older ones, so it must not stand before them
            insort = bisect.insort_left if came_back else bisect.insort_right
            insort(waiting, message, key=lambda each: each.layout)
        elif came_back:  # and lost its turn to another priority of its key: it is ahead of those that wait
            waiting.appendleft(message)
        else:
            waiting.append(message)


def _taken(waiting: deque[Message], leaves: Callable[[Message], bool]) -> list[Message]:
    """Take the messages that leave out of `waiting`, and return them."""
    taken = [m for m in waiting if leaves(m)]
    if taken:
        kept = [m for m in waiting if not leaves(m)]
        waiting.clear()
        waiting.extend(kept)
    return taken


def _is_member(message: Message) -> bool:
    return message.member is not None


def _by_score(message: Message) -> float:
    return -message.score


def is_by_score(waiting: WaitingMessages) -> bool:
    """Return whether the topic is by numeric priority, so that buffered messages stand in the order of their scores."""
    return waiting.slot is not None and waiting.slot.slot.kind is SlotKind.PRIORITY
