"""The tree of a host's topics, their groups, and the queues or the slot of each group. State only, no loops."""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import InitVar, dataclass, field

from emq.groups.capacity import MIN_BUFFER, Gauge, buffer_capacity, in_flight_limit
from emq.groups.deliveries import UNCOUNTED, Deliveries
from emq.groups.nothing import NOTHING, writable
from emq.groups.offset_tracker import Note, OffsetTracker
from emq.groups.priority import Policy
from emq.groups.receiver import Receiver
from emq.groups.slot_state import SlotState
from emq.groups.waiting_messages import WaitingMessages
from emq.quota.charge import Charge, limited
from emq.quota.counter import Counter, own_counter
from emq.quota.places.sharing import HoldingTimes
from emq.quota.throttle import Throttle
from emq.quota.topic_counter import GroupCounter, TopicCounter
from emq.storage.durability import Durability
from emq.storage.marks import Marks
from emq.storage.message import Message
from emq.storage.slot_store import Slot, SlotKind
from emq.topics.key_layouts import KeyGate
from emq.topics.model import Topic

Handler = Callable[[Message], Awaitable[object]]
BatchHandler = Callable[[list[Message]], Awaitable[object]]

WAITS_WEIGHT = 0.25
"""Weight of the newest messages in a topic's `waits`."""

LEAST_WAITS = 0.01
"""A topic's `waits` below this counts as 0, which costs nothing to keep."""


@dataclass(slots=True, eq=False, repr=False)
class OwnedTopic:
    """A topic with groups on this host.

    Attributes:
        topic: the topic as the catalog has it.
        handler: takes the topic's messages; None if no handler is bound: the topic is then not consumed.
        batch_size: most messages in one call of `handler`; above 1, `handler` takes lists.
        receiver: if set, the host starts only as many messages as the receiver wants.
        on_expired: called with each message that expired, once it is a dead letter; None for nothing.
        withdraws: called with each message that is read; returns whether it ends without a start.
        deliveries: counts the deliveries to the handler.
        in_flight: messages started and not settled, over all groups of the topic here.
        flying: bytes of the messages in flight, except messages that succeeded and wait for the store to note this.
        limit: most messages in flight, without expired and damaged ones; see `is_overfull`.
        groups: the topic's groups here, by index.
        pace: how long messages were in flight; decides on the topic's share of the host's places.
        counter: counts the starts of all groups of the topic here.
        waiting: groups that only need room below `limit`, or a free place on the host, to start a message.
        waits: share of messages whose handlers waited, from 0 to 1; the latest count most.
        coming: most messages that the claims under way may bring from the topic's slots.
        thirsty: slots with more to claim once there is room in flight.
        gate: holds back messages whose keys are moving between groups; None while no keys move.
        charge: the budget that counts the topic's starts; None without a budget.
        throttle: holds the topic below its quota on this host; None for the whole quota.
        is_deletion_said: the log has named the topic's deletion.
        window_begins_s: see `TopicCounter.begins_s`.
    """

    topic: Topic
    handler: Handler | BatchHandler | None = None
    batch_size: int = 1
    receiver: Receiver | None = None
    on_expired: Callable[[Message], object] | None = None
    withdraws: Callable[[Message], bool] | None = None
    deliveries: Deliveries = UNCOUNTED
    in_flight: int = 0
    flying: int = 0
    limit: int = field(init=False)
    groups: dict[int, OwnedGroup] = field(default_factory=dict)
    pace: HoldingTimes = field(default_factory=HoldingTimes)
    counter: TopicCounter = field(init=False)
    waiting: deque[OwnedGroup] = field(default_factory=lambda: NOTHING)
    waits: float = 0.0
    coming: int = 0
    thirsty: deque[OwnedSlot] = field(default_factory=lambda: NOTHING)
    gate: KeyGate | None = None
    charge: Charge | None = None
    throttle: Throttle | None = None
    is_deletion_said: bool = False
    window_begins_s: InitVar[float] = 0.0

    def __post_init__(self, window_begins_s: float) -> None:
        self.limit = in_flight_limit(self.topic)
        self.counter = TopicCounter(self.topic, window_begins_s)

    def set_gate(self, gate: KeyGate | None, now_us: int) -> list[OwnedGroup]:
        """Use another gate from `now_us` on; return the groups in which messages may start now.

        Messages that only the former gate held back become ready at `now_us` (the host's clock).
        """
        former, self.gate = self.gate, gate
        if former is None:
            return []
        held = [group for group in self.groups.values() if group.held or group.released]
        for group in held:
            group.let_through(former, now_us)
            group.release_idle_keys()
        return held

    def set_throttle(self, throttle: Throttle | None) -> None:
        """Put the throttle above the counters of the topic's groups here, in place of the former one."""
        self.throttle = throttle
        for group in self.groups.values():
            group.counter = limited(group.counter, self.charge, throttle)

    def throttle_at(self, now: float) -> Throttle | None:
        """Return the throttle; forget one that was a pause and is over."""
        if self.throttle is not None and self.throttle.is_over(now):
            self.set_throttle(None)
        return self.throttle

    def note_waiting(self) -> None:
        """Note that messages of the topic wait for room; the dispatcher looks again when the receiver wants more."""
        if self.receiver is not None:
            self.receiver.unasked[self] = None

    def wait_for_room(self, group: OwnedGroup) -> None:
        """Let a group with buffered messages wait until the topic has room in flight."""
        self.waiting = writable(self.waiting)
        self.waiting.append(group)
        self.note_waiting()

    def note_waits(self, share: float) -> None:
        """Note how many of the messages started together had handlers that waited, as a share."""
        self.waits += (share - self.waits) * WAITS_WEIGHT
        if self.waits < LEAST_WAITS:
            self.waits = 0.0

    def room(self) -> int:
        """Return the number of messages that may still be started now."""
        room = self.limit - self.in_flight
        return room if self.receiver is None else min(room, self.receiver.wanted)

    def is_overfull(self) -> bool:
        """Return True if more is in flight than `limit`.

        Expired and damaged messages are in flight without a start until the store takes them as dead letters. If it
        cannot, the host reads nothing more of the topic.
        """
        return self.in_flight > self.limit


class OwnedGroup(WaitingMessages):
    """A group that this host owns, under an epoch (the number of this ownership, by which stores refuse older ones).

    Attributes:
        name: `<topic>/<index>`; also the name of its lane.
        quota: the group's share of the topic's starts a second; it may use what other groups here leave of theirs.
        capacity: messages to keep buffered for one queue, lane or slot: the quota of `HORIZON_S` seconds.
        ahead: offsets that were read and that no checkpoint covers, over the group's queues.
        allowance: most messages of its queues that no checkpoint covers, finished or ready to start, beside what the
            topic's other groups here leave of theirs.
        serial: only one message runs at a time.
        busy: a message of a serial group is running.
        in_flight: messages started and not settled.
        lane_out: entries claimed from the lane and not settled.
        lane_is_empty: nothing is in the lane, dead letters included, as far as the host knows. What is to be tried
            wakes the host; of a dead letter that another process puts there, it learns by the lag loop.
        lane_finds: times that the host found or put something in the lane.
        lane_lost_ms: when the answer to a claim from the lane was lost, by the event loop's time; 0 for never. The
            store may count entries as claimed that no host has.
        layout: the layout to which this owner has raised the group's queues (they refuse earlier ones); 0 for none, or
            if the store may have forgotten it.
        raised: the tails of these queues at that time, by priority.
        listed: the group is in the rotation, parked until its counter allows more, or waiting for room in flight.
        parked_until: when the counter of a parked group allows more.
        stopping: the group is being released; the host starts nothing more of it.
        lost: a newer owner exists; the host settles and saves nothing more of the group.
    """

    __slots__ = (
        "ahead",
        "allowance",
        "busy",
        "capacity",
        "counter",
        "epoch",
        "in_flight",
        "lane_finds",
        "lane_is_empty",
        "lane_lost_ms",
        "lane_out",
        "layout",
        "listed",
        "lost",
        "name",
        "parked_until",
        "queues",
        "quota",
        "raised",
        "serial",
        "stopping",
    )

    owner: OwnedTopic
    slot: OwnedSlot | None

    def __init__(
        self, owner: OwnedTopic, index: int, epoch: int, counter: Counter, policy: Policy, gauge: Gauge
    ) -> None:
        super().__init__(index, policy, gauge)
        self.owner = owner
        self.name = owner.topic.group(index)
        self.epoch = epoch
        self.quota = 0.0
        self.capacity = MIN_BUFFER
        self.ahead = 0
        self.allowance = sys.maxsize
        self.counter = counter
        self.queues: list[OwnedQueue] = []
        self.slot = None
        self.serial = False
        self.busy = False
        self.in_flight = 0
        self.lane_out = 0
        self.lane_is_empty = False
        self.lane_finds = 0
        self.lane_lost_ms = 0
        self.layout = 0
        self.raised: Sequence[int] = ()
        self.listed = False
        self.parked_until = 0.0
        self.stopping = False
        self.lost = False

    def stop(self, now: float) -> None:
        """Start nothing more: the group is being released. Its share counts for this host in this second only."""
        self.stopping = True
        if isinstance(counter := own_counter(self.counter), GroupCounter):
            counter.leave(now)

    @property
    def durability(self) -> Durability:
        return self.owner.topic.options.durability

    @property
    def has_claims(self) -> bool:
        """True while entries of the lane or members of the slot are claimed for this group and not settled."""
        return self.lane_out > 0 or (self.slot is not None and (self.slot.claiming or bool(self.slot.held)))

    @property
    def is_claiming(self) -> bool:
        """True while a claim from the group's slot is under way."""
        return self.slot is not None and self.slot.claiming

    def unsaved(self) -> int:
        """Return the number of finished messages that no checkpoint covers; a crash would repeat them."""
        return sum([queue.tracker.total() - queue.covered for queue in self.queues])

    def add(self, queue: OwnedQueue) -> None:
        """Add the queue of the next priority."""
        self.queues.append(queue)
        self.buffers.append(NOTHING)
        self.ahead += queue.position - queue.covered

    def lane_claimed(self, n: int) -> None:
        """Count `n` entries that were claimed from the lane."""
        self.lane_out += n

    def lane_holds(self) -> None:
        """Note that something is in the lane."""
        self.lane_is_empty = False
        self.lane_finds += 1

    def lane_seen(self, is_empty: bool, finds: int) -> None:
        """Note what a call found that was sent when `lane_finds` was `finds`; later finds are newer than its answer."""
        if self.lane_finds == finds:
            self.lane_is_empty = is_empty

    def lane_settled(self) -> None:
        """Count an entry of the lane as settled, also if the store refused its verdict."""
        self.lane_out -= 1

    def finish_key(self, key: str) -> None:
        """Release a key whose message is settled, as `release_key` does.

        In a sorted topic, first ask the store whether messages that wait for the key were sent again.
        """
        slot = self.slot
        if slot is not None and slot.tell is not None and (0, key) in self.blocked:
            self.running.setdefault(key, 0)
            slot.freed[key] = None
            slot.tell(slot)
        else:
            self.release_key(key)


@dataclass(slots=True, eq=False, repr=False)
class OwnedQueue:
    """A physical queue of an owned group.

    Attributes:
        priority: index into the topic's priorities.
        position: the offset to read from next.
        tracker: the finished offsets.
        marks: messages read last; they show whether the store has lost messages that were read.
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

    group: OwnedGroup
    priority: int
    tracker: OffsetTracker
    horizon_s: InitVar[float]
    marks: Marks = field(default_factory=Marks)
    name: str = field(init=False)
    position: int = field(init=False)
    saved: int = field(init=False)
    covered: int = field(init=False)
    trimmed: int = field(init=False)
    notes: tuple[Note, ...] = ()
    more: bool = True
    woken: bool = False
    listed: bool = False
    dirty: bool = False
    capacity: int = field(init=False)
    expected: int = 0

    def __post_init__(self, horizon_s: float) -> None:
        self.name = self.group.owner.topic.queue(self.group.index, self.priority)
        self.position = self.saved = self.trimmed = self.tracker.watermark
        self.covered = self.tracker.total()
        self.capacity = buffer_capacity(self.group.quota, horizon_s)

    def wake(self) -> None:
        """Note that the store has received messages of the queue."""
        self.more = self.woken = True

    def enlist(self) -> None:
        """Note that the queue waits to be read."""
        self.listed = True

    def delist(self) -> None:
        """Note that the queue was read, or wants no messages now."""
        self.listed = False

    def begin_read(self) -> None:
        """Note that a read is sent; a later wake-up may be for messages that this read does not find."""
        self.woken = False

    def advance(self, upto: int, exhausted: bool) -> None:
        """Note that a read ended before offset `upto`.

        Args:
            upto: the offset from which to read next.
            exhausted: the read came to the queue's end, and the store armed the queue.
        """
        self.group.ahead += upto - self.position
        self.position = upto
        self.more = self.woken or not exhausted

    def mark_dirty(self) -> None:
        """Note that the progress changed for the first time since the last checkpoint."""
        self.dirty = True

    def begin_save(self) -> None:
        """Note that the progress so far is about to be saved."""
        self.dirty = False

    def cover(self, finished: int) -> None:
        """Note that a checkpoint covers `finished` finished offsets."""
        self.group.ahead -= finished - self.covered
        self.covered = finished
        if not self.group.buffers[self.priority]:
            self.group.buffers[self.priority] = NOTHING  # most queues that were saved now wait for a long time


class OwnedSlot(SlotState):
    """A slot that this host owns, with the group that claims from it.

    Attributes:
        tell: called with the slot when there is more to do; None before the slot is acquired.
    """

    __slots__ = ("group", "tell")

    def __init__(self, group: OwnedGroup, slot: Slot) -> None:
        super().__init__(slot)
        self.group = group
        self.tell: Callable[[OwnedSlot], None] | None = None

    def until_ms(self, now_ms: int) -> int:
        """Return the due time up to which a claim at `now_ms` takes members; a whole second for that precision."""
        return now_ms - now_ms % 1000 if self._by_second() else now_ms

    def note_times(self, next_score: float | None, rest_ms: int | None = None) -> None:
        """Note what the store has told.

        Args:
            next_score: score of the member that waits first; None for none, and the store will wake the host.
            rest_ms: when the first resting member may wait again; None for none.
        """
        if next_score is not None:
            precision = 1000 if self._by_second() else 1
            due_ms = 0 if self.slot.kind is SlotKind.PRIORITY else math.ceil(next_score / precision) * precision
            self.next_ms = min(self.next_ms, due_ms)
        self.rest_ms = min(self.rest_ms, rest_ms or math.inf)

    def wait_for_room(self) -> None:
        """Wait in the topic's `thirsty` until it has room in flight."""
        if not self.thirsty:
            self.thirsty = True
            owner = self.group.owner
            owner.thirsty = writable(owner.thirsty)
            owner.thirsty.append(self)
            owner.note_waiting()

    def look(self) -> None:
        if self.tell is not None:
            self.tell(self)

    def _by_second(self) -> bool:
        return self.slot.kind is SlotKind.FIXED_TIME and self.group.owner.topic.options.precision == "second"
