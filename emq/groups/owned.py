"""The state that a host holds of its topics, groups and queues. The loops that use the state are in their own files."""

from __future__ import annotations

import bisect
import heapq
import math
import sys
from collections import deque
from collections.abc import Awaitable, Callable

from emq.groups.offset_tracker import Note, OffsetTracker
from emq.groups.owned_slot import OwnedSlot
from emq.groups.priority import STRICT, Policy
from emq.groups.receiver import Receiver
from emq.message import Message
from emq.places import sharing
from emq.places.sharing import HoldingTimes
from emq.quota.borrowing import Sister
from emq.quota.counter import Counter
from emq.storage.marks import Marks
from emq.storage.slot_store import SlotKind
from emq.topics.key_layouts import KeyGate
from emq.topics.model import Topic

Handler = Callable[[Message], Awaitable[object]]
BatchHandler = Callable[[list[Message]], Awaitable[object]]

MIN_BUFFER = 8
"""Least capacity of a buffer, in messages: worth a round trip even with a tiny quota."""
MAX_BUFFER = 500
"""Most messages buffered for one queue, however large its quota."""


BUFFER_MESSAGES = 200_000
BUFFER_BYTES = 256 << 20

UNKNOWN_BYTES = 4096
"""Assumed size of a message, in bytes, before its group has read any."""


class Gauge:
    """Counts the messages and bytes that a host has in memory, against their bounds.

    Topics share both bounds as they share the places in flight (`emq.places.sharing`), so that the full buffers of
    some topics never stop the others. If a group may buffer nothing more, a queue with an empty buffer may still read
    one message while its topic has nothing in flight. So the true bound is higher by one message for each owned queue.

    Attributes:
        messages, bytes: the buffered ones.
        flying: bytes in flight, of messages whose handler did not return at once.
    """

    __slots__ = ("bytes", "flying", "max_bytes", "max_messages", "messages")

    def __init__(self, max_messages: int = BUFFER_MESSAGES, max_bytes: int = BUFFER_BYTES) -> None:
        self.messages = 0
        self.bytes = 0
        self.flying = 0
        self.max_messages = max_messages
        self.max_bytes = max_bytes

    def pressed(self) -> bool:
        """Return True if memory is so full that the share of some topic may be used up."""
        return self.messages * 4 > self.max_messages or (self.bytes + self.flying) * 4 > self.max_bytes


class OwnedTopic:
    """A topic with groups on this host.

    Attributes:
        topic: the topic as the catalog has it.
        handler: takes the topic's messages; None if no handler is bound to the topic, which is then not consumed.
        batch_size: most messages in one call of `handler`; above 1, `handler` takes lists.
        receiver: if set, the host starts only as many messages as the receiver wants.
        in_flight: messages started and not settled, over all groups of the topic here.
        flying: bytes of the messages in flight, except those that succeeded and only wait for the store to note that.
        limit: most messages in flight, but for expired and damaged ones; see `is_overfull`.
        groups: the topic's groups here, by index.
        pace: the times that messages were in flight; they decide on the topic's share of the host's places.
        sisters: the topic's groups here; they may borrow starts from each other.
        waiting: groups that could start a message but for `limit`, or for a free place on the host.
        coming: most messages that claims under way from the topic's slots may bring.
        thirsty: slots with more to claim once there is room in flight.
        gate: holds back messages whose keys are moving between groups; None while no keys move.
    """

    __slots__ = (
        "batch_size",
        "coming",
        "flying",
        "gate",
        "groups",
        "handler",
        "in_flight",
        "limit",
        "pace",
        "receiver",
        "sisters",
        "thirsty",
        "topic",
        "waiting",
    )

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.handler: Handler | BatchHandler | None = None
        self.batch_size = 1
        self.receiver: Receiver | None = None
        self.in_flight = 0
        self.flying = 0
        self.limit = in_flight_limit(topic)
        self.groups: dict[int, OwnedGroup] = {}
        self.sisters: deque[Sister] = deque()
        self.pace = HoldingTimes()
        self.waiting: deque[OwnedGroup] = deque()
        self.coming = 0
        self.thirsty: deque[OwnedSlot] = deque()
        self.gate: KeyGate | None = None

    def set_gate(self, gate: KeyGate | None) -> list[OwnedGroup]:
        """Use another gate from now on; return the groups in which messages may start now."""
        if gate is self.gate is None:
            return []
        self.gate = gate
        held = [group for group in self.groups.values() if group.held]
        for group in held:
            group.release_idle_keys()
        return held

    def note_waiting(self) -> None:
        """Note that messages of the topic wait for room; the dispatcher looks again when the receiver wants more."""
        if self.receiver is not None:
            self.receiver.unasked[self] = None

    def room(self) -> int:
        """Return the number of messages that may still be started now."""
        room = self.limit - self.in_flight
        return room if self.receiver is None else min(room, self.receiver.wanted)

    def is_overfull(self) -> bool:
        """Return True if more is in flight than `limit`.

        Expired and damaged messages come into flight without a start, to be dead-lettered, and find no room if the
        store cannot take dead letters. Until it does, the host reads nothing more of the topic.
        """
        return self.in_flight > self.limit


def in_flight_limit(topic: Topic) -> int:
    """Return the topic's `max_in_flight`; by default five seconds of its qps, at least 8 and at most 1,000.

    With five seconds, an endpoint that needs up to 5 s for a message still reaches the full rate. The upper limit keeps
    one slow topic from filling the host.
    """
    if topic.options.max_in_flight is not None:
        return topic.options.max_in_flight
    return min(1000, max(8, math.ceil(topic.qps * 5)))


class OwnedGroup:
    """A group that this host owns, under an epoch (the number of this ownership, by which stores refuse older ones).

    Attributes:
        name: `<topic>/<index>`; also the name of its lane.
        quota: starts a second.
        capacity: messages to keep buffered for one queue, lane or slot: the quota of `HORIZON_S` seconds.
        ahead: offsets that were read and that no checkpoint covers, over the group's queues.
        allowance: most messages of its queues that may be finished or ready to start and that no checkpoint covers.
        buffers: messages that are ready to start, one buffer for each priority, highest first; one for a sorted topic.
        slot: of a sorted topic, the slot that the group claims from; None for a log topic.
        serial: only one message runs at a time.
        busy: a message of a serial group is running.
        expires_us: when the first buffered message expires, microseconds since the epoch; 0 if none can expire.
        buffered: messages in `buffers`.
        running: keys of the messages in flight, each with the layout by which its message came here.
        blocked: messages that wait for their key (another message of the key runs, or the gate is closed), by
            (priority, key).
        held: number of messages in `blocked`.
        mean_bytes: bytes of one message, averaged over the last ones; 0 before the first.
        released: messages that came back from `blocked` to a buffer and were not taken yet, by (priority, key).
        retries: number of buffered and held messages that were claimed from the lane, by priority.
        in_flight: messages started and not settled.
        lane_out: entries claimed from the lane and not settled.
        lane_lost_ms: when the answer to a claim from the lane was lost, by the event loop's time; 0 for never. Entries
            of that claim may be claimed without any host having them.
        listed: the group is in the rotation, parked until its counter allows more, or waiting for room in flight.
        parked_until: when the counter of a parked group allows more.
        stopping: the group is being released; the host starts nothing more of it.
        lost: a newer owner exists; the host settles and saves nothing more of the group.
    """

    __slots__ = (
        "ahead",
        "allowance",
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
        "mean_bytes",
        "name",
        "owner",
        "parked_until",
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
        self.ahead = 0
        self.allowance = sys.maxsize
        self.counter = counter
        self.policy = policy
        self.queues: list[OwnedQueue] = []
        self.buffers: list[deque[Message]] = []
        self.buffered = 0
        self.running: dict[str, int] = {}
        self.blocked: dict[tuple[int, str], deque[Message]] = {}
        self.held = 0
        self.mean_bytes = 0.0
        self.released: dict[tuple[int, str], Message] = {}
        self.retries: dict[int, int] = {}
        self.in_flight = 0
        self.lane_out = 0
        self.lane_lost_ms = 0
        self.listed = False
        self.parked_until = 0.0
        self.stopping = False
        self.lost = False
        self.slot: OwnedSlot | None = None
        self.serial = False
        self.busy = False
        self.expires_us = 0

    @property
    def is_claiming(self) -> bool:
        """True while a claim from the group's slot is under way."""
        return self.slot is not None and self.slot.claiming

    @property
    def is_by_score(self) -> bool:
        """True if the topic is by numeric priority, so that buffered messages stand in the order of their scores."""
        return self.slot is not None and self.slot.slot.kind is SlotKind.PRIORITY

    def push(self, priority: int, messages: list[Message]) -> None:
        """Buffer messages of one priority, in order; they are ready to start from now on.

        In a topic by numeric priority, the messages are merged into the buffer by their scores.
        """
        buffer = self.buffers[priority]
        if buffer and self.is_by_score and messages[0].score > buffer[-1].score:
            merged = list(heapq.merge(buffer, messages, key=_by_score))
            buffer.clear()
            buffer.extend(merged)
        else:
            buffer.extend(messages)
        n, size = len(messages), sum([len(m.payload) for m in messages])
        self.buffered += n
        self.gauge.messages += n
        self.gauge.bytes += size
        if n:
            weight = min(1.0, n / 16) if self.mean_bytes else 1.0
            self.mean_bytes += (size / n - self.mean_bytes) * weight

    def memory_room(self, now: float) -> int:
        """Return how many more messages the group may buffer, so that all topics find room; 0 or less for none."""
        gauge = self.gauge
        if not gauge.pressed():
            return gauge.max_messages
        owner, waiting = self.owner, self.buffered + self.held
        hold_s = owner.pace.hold_s(int(now * 1e6))
        messages = sharing.room(sharing.ceiling(gauge.max_messages, hold_s), gauge.messages, waiting)
        size = self.mean_bytes or UNKNOWN_BYTES
        held_bytes = int(waiting * self.mean_bytes) + owner.flying
        room_bytes = sharing.room(sharing.ceiling(gauge.max_bytes, hold_s), gauge.bytes + gauge.flying, held_bytes)
        return min(messages, int(room_bytes // size))

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
                self._uncount(message)
            gauge = self.gauge
            gauge.messages -= 1
            gauge.bytes -= len(message.payload)
            return message
        return None

    def take_expired(self, now_us: int) -> list[Message]:
        """Take out the expired messages, and set `expires_us` to the next expiry."""
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
            self.release_idle_keys()
        return expired

    def unsaved(self) -> int:
        """Return the number of finished messages that no checkpoint covers; a crash would repeat them."""
        return sum([queue.tracker.total() - queue.covered for queue in self.queues])

    def oldest_layout(self) -> float:
        """Return the oldest layout by which a message with a key came here that runs or waits; infinity if none does.

        Messages that wait in the lane for their retry do not count.
        """
        messages = (m for waiting in (*self.buffers, *self.blocked.values()) for m in waiting)
        waiting = min((m.layout for m in messages if m.key is not None), default=math.inf)
        return min(waiting, *self.running.values()) if self.running else waiting

    def held_of(self, priority: int) -> int:
        """Return the number of messages of that priority in `blocked`."""
        return sum(len(waiting) for (of, _), waiting in self.blocked.items() if of == priority)

    def held_members(self) -> int:
        """Return the number of messages in `blocked` that were claimed from the slot, not from the lane."""
        if not any(self.retries.values()):
            return self.held
        return sum([m.member is not None for waiting in self.blocked.values() for m in waiting])

    def take_members(self) -> list[Message]:
        """Take out the buffered messages that were claimed from the slot; messages that wait for a running key stay."""
        taken: list[Message] = []
        buffer = self.buffers[0]
        while members := [m for m in buffer if m.member is not None]:
            kept = [m for m in buffer if m.member is None]
            buffer.clear()
            buffer.extend(kept)
            self.buffered -= len(members)
            self.gauge.messages -= len(members)
            self.gauge.bytes -= sum([len(m.payload) for m in members])
            for m in members:
                self._uncount(m)
                self._came_back(m)
            taken += members
            if self.held:
                self.release_idle_keys()
        return taken

    def waiting_members(self) -> list[Message]:
        """Return the messages that were claimed from the slot and not started."""
        returning = self.slot.returning if self.slot is not None else []
        return returning + [
            m for waiting in (*self.buffers, *self.blocked.values()) for m in waiting if m.member is not None
        ]

    def discard(self) -> None:
        """Forget the buffered messages; they are still in the store."""
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
            self.slot.returning.clear()
            self.slot.freed.clear()

    def finish_key(self, key: str) -> None:
        """Release a key whose message is settled, as `release_key` does.

        In a sorted topic, first ask the store whether the messages that wait for the key were sent again meanwhile.
        """
        slot = self.slot
        if slot is not None and slot.claims is not None and (0, key) in self.blocked:
            self.running.setdefault(key, 0)
            slot.freed[key] = None
            slot.claims.freed(slot)
        else:
            self.release_key(key)

    def take_blocked(self, key: str) -> list[Message]:
        """Take out the messages that were claimed from the slot and wait for that key."""
        blocked = self.blocked.pop((0, key), None) or ()
        taken = [m for m in blocked if m.member is not None]
        if kept := [m for m in blocked if m.member is None]:
            self.blocked[0, key] = deque(kept)
        self.held -= len(taken)
        self.gauge.messages -= len(taken)
        self.gauge.bytes -= sum([len(m.payload) for m in taken])
        for m in taken:
            self._uncount(m)
        return taken

    def release_key(self, key: str) -> None:
        """Make the next message of that key ready, one of each priority, ahead of later messages.

        In a topic by numeric priority, the message takes its place by its score.
        """
        self.running.pop(key, None)
        if self.held:
            for priority, buffer in enumerate(self.buffers):
                waiting = self.blocked.get((priority, key))
                # One at a time: a second one would get in front of the first while another priority has its turn.
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
        """Take the expired messages out of `waiting` and return them; note when the next one expires."""
        expired = [m for m in waiting if 0 < m.expires_us <= now_us]
        if expired:
            kept = [m for m in waiting if not 0 < m.expires_us <= now_us]
            waiting.clear()
            waiting.extend(kept)
        for m in waiting:
            if m.expires_us:
                self.expires_us = min(self.expires_us or m.expires_us, m.expires_us)
        return expired

    def release_idle_keys(self) -> None:
        """Make the next message of each key ready that does not run.

        Call this after a released message has expired, or the messages behind it would wait for ever; and after a
        change of the topic's gate, so that the messages held back by the gate are looked at again.
        """
        for _, key in list(self.blocked):
            if key not in self.running:
                self.finish_key(key)

    def _came_back(self, message: Message) -> bool:
        """Remove the message from `released`; return whether it was there."""
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
        if (
            self.owner.gate is not None
        ):  # one that the gate holds must not stand before an older one, which it waits for
            insort = bisect.insort_left if came_back else bisect.insort_right
            insort(waiting, message, key=_layout)
        elif came_back:  # and lost its turn to another priority of its key: it is ahead of those that wait
            waiting.appendleft(message)
        else:
            waiting.append(message)


def _by_score(message: Message) -> float:
    return -message.score


def _layout(message: Message) -> int:
    return message.layout


class Claims:
    """Claims from slots, as the dispatcher sees them: it reports when messages cannot start, and when they can again.

    The host claims nothing ahead from a slot: members that wait in the slot merge with later publishes, and claimed
    messages do not.
    """

    def stuck(self, group: OwnedGroup, room: bool = False) -> None:
        """The claimed messages of the group cannot start now; `room`: because the topic has no room in flight."""

    def has_room(self, owner: OwnedTopic) -> None:
        """The topic has room in flight again, and slots that wait for room."""

    def freed(self, slot: OwnedSlot) -> None:
        """A key for which messages of the slot wait does not run any more; the key is in `OwnedSlot.freed`."""


class OwnedQueue:
    """A physical queue of an owned group.

    Attributes:
        priority: index into the topic's priorities.
        position: the offset to read from next.
        tracker: the finished offsets.
        marks: messages read last; by these the store is asked whether it still has what was read.
        saved: the watermark of the last checkpoint. The watermark is the first offset that is not finished.
        covered: number of finished offsets that the last checkpoint covers; a crash does not repeat them.
        trimmed: offset below which the store was told to drop messages.
        notes: of a topic with a retention: past times with the watermarks of those times, oldest first.
        more: True if the store probably holds messages from `position` on; False while the queue is armed.
        listed: the queue waits to be read, or is being read.
        woken: the queue received messages since the last read was sent.
        dirty: the progress has changed since the last checkpoint.
        capacity: messages to keep buffered; see `queue_capacity`.
        expected: messages that the next read may find, estimated from the last read; 0 before the first.
    """

    __slots__ = (
        "capacity",
        "covered",
        "dirty",
        "expected",
        "group",
        "listed",
        "marks",
        "more",
        "name",
        "notes",
        "position",
        "priority",
        "saved",
        "tracker",
        "trimmed",
        "woken",
    )

    def __init__(
        self,
        group: OwnedGroup,
        priority: int,
        tracker: OffsetTracker,
        horizon_s: float,
        marks: Marks | None = None,
    ) -> None:
        self.group = group
        self.priority = priority
        self.name = group.owner.topic.queue(group.index, priority)
        self.tracker = tracker
        self.marks = marks or Marks()
        self.position = tracker.watermark
        self.saved = tracker.watermark
        self.covered = tracker.total()
        self.trimmed = tracker.watermark
        self.notes: tuple[Note, ...] = ()
        self.more = True
        self.woken = False
        self.listed = False
        self.dirty = False
        self.capacity = buffer_capacity(group.quota, horizon_s)
        self.expected = 0


def buffer_capacity(quota: float, horizon_s: float, may_expire: bool = False) -> int:
    """Return the messages to keep buffered for one queue: `horizon_s` seconds of its group's quota, 8 to 500.

    If messages may expire, 500: the host can dead-letter an expired message only once the message is buffered.
    """
    if may_expire:
        return MAX_BUFFER
    return min(MAX_BUFFER, max(MIN_BUFFER, math.ceil(quota * horizon_s)))


def queue_capacity(capacity: int, priority: int, priorities: int) -> int:
    """Return the messages to keep buffered for one queue: `capacity` for the lowest priority, else up to twice that.

    A buffer is filled again when it is half empty. So the buffer of a higher priority holds a second's quota whenever a
    second begins. While the store holds more of that priority, no lower priority gets a part of that second.
    """
    return capacity if priority + 1 >= priorities else min(MAX_BUFFER, 2 * capacity)
