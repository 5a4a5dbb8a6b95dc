"""What a host holds of the topics, groups and queues that it owns. State only; the loops are in their own files."""

from __future__ import annotations

import bisect
import heapq
import math
from collections import deque
from collections.abc import Awaitable, Callable

from emq.dispatch.borrowing import Sister
from emq.dispatch.counter import Counter
from emq.dispatch.priority import STRICT, Policy
from emq.message import Message
from emq.model import Topic
from emq.offsets.tracker import OffsetTracker
from emq.owned_slot import OwnedSlot
from emq.receiver import Receiver
from emq.slots import SlotKind

Handler = Callable[[Message], Awaitable[object]]
BatchHandler = Callable[[list[Message]], Awaitable[object]]

MIN_BUFFER = 8
"""Messages worth a round trip even at a tiny quota."""
MAX_BUFFER = 500
"""Most messages buffered for one queue, however large its quota."""


BUFFER_MESSAGES = 200_000
BUFFER_BYTES = 256 << 20


class Gauge:
    """How much is buffered on a host, against its bounds.

    At a bound, a queue with an empty buffer may still read one message, so that the full buffers of some never stop
    the others; the true bound is therefore one message for each owned queue above.
    """

    __slots__ = ("bytes", "max_bytes", "max_messages", "messages")

    def __init__(self, max_messages: int = BUFFER_MESSAGES, max_bytes: int = BUFFER_BYTES) -> None:
        self.messages = 0
        self.bytes = 0
        self.max_messages = max_messages
        self.max_bytes = max_bytes

    def full(self) -> bool:
        return self.messages >= self.max_messages or self.bytes >= self.max_bytes


class OwnedTopic:
    """A topic with groups on this host.

    Attributes:
        topic: as the catalog has it.
        handler: what its messages go to; None when nothing is bound to the topic, which is then not consumed.
        batch_size: above 1, `handler` takes lists of up to so many messages.
        receiver: if set, messages are started only as far as it wants them.
        in_flight: messages started and not settled yet, over all its groups here.
        limit: most messages in flight.
        sisters: its groups, for those that borrow from each other; empty for a topic that does not.
        waiting: groups that could start a message but for `limit`.
    """

    __slots__ = ("batch_size", "groups", "handler", "in_flight", "limit", "receiver", "sisters", "topic", "waiting")

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.handler: Handler | BatchHandler | None = None
        self.batch_size = 1
        self.receiver: Receiver | None = None
        self.in_flight = 0
        self.limit = in_flight_limit(topic)
        self.groups: dict[int, OwnedGroup] = {}
        self.sisters: deque[Sister] | tuple[()] = ()
        self.waiting: list[OwnedGroup] = []

    def room(self) -> int:
        """How many more messages may be started now."""
        room = self.limit - self.in_flight
        return room if self.receiver is None else min(room, self.receiver.wanted)


def in_flight_limit(topic: Topic) -> int:
    """The topic's own `max_in_flight`, or five seconds of its qps, from 8 to 1,000.

    Five seconds let an endpoint that answers in up to 5 s still reach the full rate; the upper end keeps one slow
    topic from filling the host.
    """
    if topic.options.max_in_flight is not None:
        return topic.options.max_in_flight
    return min(1000, max(8, math.ceil(topic.qps * 5)))


class OwnedGroup:
    """A group that this host owns, under an epoch.

    Attributes:
        name: `<topic>/<index>`; also the name of its lane.
        quota: starts a second.
        capacity: messages to keep buffered for one queue, lane or slot: the horizon's worth of the quota.
        buffers: one for each priority, highest first; ready to start. A sorted topic has one.
        slot: of a sorted topic, what it claims from; None for a log topic.
        serial: only one message runs at a time.
        busy: a message of a serial group is running.
        expires_us: when the first buffered message expires; 0 while none may.
        buffered: messages in `buffers`.
        running: keys of the messages in flight.
        blocked: messages that wait for an earlier one of their key and priority, by (priority, key).
        held: messages in `blocked`.
        released: those that came back from `blocked` and were not taken yet, by (priority, key).
        retries: of `buffered` and `held`, those claimed from the lane, by priority.
        in_flight: started and not settled.
        lane_out: entries claimed from the lane and not settled.
        lane_lost_ms: when the answer of a claim from the lane was lost, so that entries may be claimed that nobody has;
            0 for never.
        listed: it is in the rotation, parked until its counter allows more, or waiting for room in flight.
        stopping: it is being released; nothing more is started.
        lost: a newer owner exists; nothing more is settled or saved.
    """

    __slots__ = (
        "blocked",
        "buffered",
        "buffers",
        "busy",
        "capacity",
        "counter",
        "epoch",
        "expires_us",
        "gauge",
        "held",
        "in_flight",
        "index",
        "lane_lost_ms",
        "lane_out",
        "listed",
        "lost",
        "name",
        "owner",
        "policy",
        "queues",
        "quota",
        "released",
        "retries",
        "running",
        "serial",
        "slot",
        "stopping",
    )

    def __init__(
        self, owner: OwnedTopic, index: int, epoch: int, counter: Counter, policy: Policy, gauge: Gauge
    ) -> None:
        self.owner = owner
        self.gauge = gauge
        self.index = index
        self.name = owner.topic.group(index)
        self.epoch = epoch
        self.quota = 0.0
        self.capacity = MIN_BUFFER
        self.counter = counter
        self.policy = policy
        self.queues: list[OwnedQueue] = []
        self.buffers: list[deque[Message]] = []
        self.buffered = 0
        self.running: set[str] = set()
        self.blocked: dict[tuple[int, str], deque[Message]] = {}
        self.held = 0
        self.released: dict[tuple[int, str], Message] = {}
        self.retries: dict[int, int] = {}
        self.in_flight = 0
        self.lane_out = 0
        self.lane_lost_ms = 0
        self.listed = False
        self.stopping = False
        self.lost = False
        self.slot: OwnedSlot | None = None
        self.serial = False
        self.busy = False
        self.expires_us = 0

    @property
    def is_claiming(self) -> bool:
        """A claim from its slot is under way."""
        return self.slot is not None and self.slot.claiming

    @property
    def is_by_score(self) -> bool:
        """Its topic is by numeric priority: what is buffered takes its place by it."""
        return self.slot is not None and self.slot.slot.kind is SlotKind.PRIORITY

    def push(self, priority: int, messages: list[Message]) -> None:
        """Buffer messages of one priority, in order; they are ready from now on.

        Those of a topic by numeric priority take their places among what is buffered.
        """
        buffer = self.buffers[priority]
        if buffer and self.is_by_score and messages[0].score > buffer[-1].score:
            merged = list(heapq.merge(buffer, messages, key=_by_score))
            buffer.clear()
            buffer.extend(merged)
        else:
            buffer.extend(messages)
        self.buffered += len(messages)
        self.gauge.messages += len(messages)
        self.gauge.bytes += sum([len(m.payload) for m in messages])

    def take(self, now_us: int) -> Message | None:
        """The next message to start, by the topic's priority policy, none whose key is running; or None."""
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
                if message.key in self.running:
                    self._block(message, came_back)
                    continue
                self.running.add(message.key)
            if message.offset < 0:
                self._uncount(message)
            self.gauge.messages -= 1
            self.gauge.bytes -= len(message.payload)
            return message
        return None

    def take_expired(self, now_us: int) -> list[Message]:
        """Take out what may not start any more; `expires_us` is then the next one's time."""
        self.expires_us = 0
        expired = [m for waiting in (*self.buffers, *self.blocked.values()) for m in self._sift(waiting, now_us)]
        self.blocked = {place: waiting for place, waiting in self.blocked.items() if waiting}
        for m in expired:
            self._came_back(m)
            if m.offset < 0:
                self._uncount(m)
            self.gauge.messages -= 1
            self.gauge.bytes -= len(m.payload)
        if expired:
            self.buffered = sum(map(len, self.buffers))
            self.held = sum(map(len, self.blocked.values()))
            self._release_idle_keys()
        return expired

    def held_of(self, priority: int) -> int:
        """Messages of that priority in `blocked`."""
        return sum(len(waiting) for (of, _), waiting in self.blocked.items() if of == priority)

    def waiting_members(self) -> list[Message]:
        """What was claimed from the slot and not started."""
        return [m for waiting in (*self.buffers, *self.blocked.values()) for m in waiting if m.member is not None]

    def discard(self) -> None:
        """Forget what is buffered; it is still in the store."""
        waiting = [*self.buffers, *self.blocked.values()]
        self.gauge.messages -= sum(map(len, waiting))
        self.gauge.bytes -= sum(len(m.payload) for messages in waiting for m in messages)
        for messages in waiting:
            messages.clear()
        self.blocked.clear()
        self.released.clear()
        self.retries.clear()
        self.buffered = self.held = self.expires_us = 0
        if self.slot is not None:
            self.slot.buffered = 0
            self.slot.held.clear()

    def finish_key(self, key: str) -> None:
        """A message of this key is settled; the next one of each priority becomes ready, ahead of later messages.

        In a topic by numeric priority it takes its place by that.
        """
        self.running.discard(key)
        if self.held:
            for priority, buffer in enumerate(self.buffers):
                waiting = self.blocked.get((priority, key))
                # One at a time: a second one would get in front of the first, which another priority's turn delays.
                if waiting and (priority, key) not in self.released:
                    message = self.released[priority, key] = waiting.popleft()
                    if self.is_by_score:
                        bisect.insort_left(buffer, message, key=_by_score)
                    else:
                        buffer.appendleft(message)
                    self.buffered += 1
                    self.held -= 1
                    if not waiting:
                        del self.blocked[priority, key]

    def _sift(self, waiting: deque[Message], now_us: int) -> list[Message]:
        """Take the expired out of `waiting` and answer them; note when the next one expires."""
        expired = [m for m in waiting if 0 < m.expires_us <= now_us]
        if expired:
            kept = [m for m in waiting if not 0 < m.expires_us <= now_us]
            waiting.clear()
            waiting.extend(kept)
        for m in waiting:
            if m.expires_us:
                self.expires_us = min(self.expires_us or m.expires_us, m.expires_us)
        return expired

    def _release_idle_keys(self) -> None:
        """One that was released and has expired must not leave those that waited behind it waiting for ever."""
        for _, key in list(self.blocked):
            if key not in self.running:
                self.finish_key(key)

    def _came_back(self, message: Message) -> bool:
        """Whether it is the one in `released` of its priority and key, which it then is no more."""
        place = message.priority, message.key or ""
        if self.released.get(place) is not message:
            return False
        del self.released[place]
        return True

    def _uncount(self, message: Message) -> None:
        if message.member is None:
            self.retries[message.priority] -= 1
        elif self.slot is not None:
            self.slot.buffered -= 1

    def _block(self, message: Message, came_back: bool) -> None:
        waiting = self.blocked.setdefault((message.priority, message.key or ""), deque())
        self.held += 1
        if self.is_by_score:
            bisect.insort(waiting, message, key=_by_score)
            return
        if came_back:  # and lost its turn to another priority of its key: it is ahead of those that wait
            waiting.appendleft(message)
        else:
            waiting.append(message)


def _by_score(message: Message) -> float:
    return -message.score


class OwnedQueue:
    """A physical queue of an owned group.

    Attributes:
        priority: index into the topic's priorities.
        position: the offset to read from next.
        tracker: its progress.
        saved: the watermark of the last checkpoint.
        trimmed: up to where the store was told to drop.
        noted_s: when `saved` was last noted, to be dropped after the topic's retention.
        more: the store holds more from `position` on, as far as is known; False while it is armed.
        listed: it waits to be read, or is being read.
        woken: it received messages since the last read was sent.
        dirty: its progress has changed since the last checkpoint.
        capacity: messages to keep buffered: the horizon's worth of its group's quota.
        expected: messages that the next read will find, going by the last one; 0 before that.
    """

    __slots__ = (
        "capacity",
        "dirty",
        "expected",
        "group",
        "listed",
        "more",
        "name",
        "noted_s",
        "position",
        "priority",
        "saved",
        "tracker",
        "trimmed",
        "woken",
    )

    def __init__(self, group: OwnedGroup, priority: int, tracker: OffsetTracker, horizon_s: float) -> None:
        self.group = group
        self.priority = priority
        self.name = group.owner.topic.queue(group.index, priority)
        self.tracker = tracker
        self.position = tracker.watermark
        self.saved = tracker.watermark
        self.trimmed = tracker.watermark
        self.noted_s = 0.0
        self.more = True
        self.woken = False
        self.listed = False
        self.dirty = False
        self.capacity = buffer_capacity(group.quota, horizon_s)
        self.expected = 0


def buffer_capacity(quota: float, horizon_s: float) -> int:
    """Messages to keep buffered for one queue: `horizon_s` seconds of its group's quota, 8 to 500."""
    return min(MAX_BUFFER, max(MIN_BUFFER, math.ceil(quota * horizon_s)))
