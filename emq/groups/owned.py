"""The tree of a host's topics, their groups, and the queues or the slot of each group.

State only: loops are elsewhere. Parts that do not need the rest of the tree have files of their own:
`emq.groups.waiting_messages`, `emq.groups.owned_queue`, `emq.groups.slot_state`, `emq.groups.capacity`.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import InitVar, dataclass, field

from emq.groups.capacity import MIN_BUFFER, Gauge, in_flight_limit
from emq.groups.deliveries import UNCOUNTED, Deliveries
from emq.groups.owned_queue import OwnedQueue
from emq.groups.priority import Policy
from emq.groups.receiver import Receiver
from emq.groups.slot_state import SlotState
from emq.groups.waiting_messages import WaitingMessages
from emq.message import Message
from emq.quota.charge import Charge, limited
from emq.quota.counter import Counter, own_counter
from emq.quota.places import sharing
from emq.quota.places.sharing import HoldingTimes
from emq.quota.throttle import Throttle
from emq.quota.topic_counter import GroupCounter, TopicCounter
from emq.storage.slot_store import Slot, SlotKind
from emq.topics.key_layouts import KeyGate
from emq.topics.model import Topic

Handler = Callable[[Message], Awaitable[object]]
BatchHandler = Callable[[list[Message]], Awaitable[object]]

UNKNOWN_BYTES = 4096
"""Assumed size of a message, in bytes, before its group has read any."""

SOON_S = 0.1
"""Seconds after which a group that waited for memory surely reads again."""

SCANT_BYTES = 1 << 20
"""Most bytes of a queue that a quick topic has in memory beyond its share; one message may be larger."""

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
    deliveries: Deliveries = UNCOUNTED
    in_flight: int = 0
    flying: int = 0
    limit: int = field(init=False)
    groups: dict[int, OwnedGroup] = field(default_factory=dict)
    pace: HoldingTimes = field(default_factory=HoldingTimes)
    counter: TopicCounter = field(init=False)
    waiting: deque[OwnedGroup] = field(default_factory=deque)
    waits: float = 0.0
    coming: int = 0
    thirsty: deque[OwnedSlot] = field(default_factory=deque)
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
    def has_claims(self) -> bool:
        """True while entries of the lane or members of the slot are claimed for this group and not settled."""
        return self.lane_out > 0 or (self.slot is not None and (self.slot.claiming or bool(self.slot.held)))

    @property
    def is_claiming(self) -> bool:
        """True while a claim from the group's slot is under way."""
        return self.slot is not None and self.slot.claiming

    def memory_room(self, now: float) -> int:
        """Return how many more messages the group may buffer and leave room for all topics; 0 or less for none."""
        gauge = self.gauge
        if not gauge.pressed():
            return gauge.max_messages
        owner, waiting = self.owner, self.buffered + self.held
        hold_s = owner.pace.hold_s(int(now * 1e6)) if owner.pace.known else math.inf
        messages = sharing.room(sharing.ceiling(gauge.max_messages, hold_s), gauge.messages, waiting)
        size = self.mean_bytes or UNKNOWN_BYTES
        held_bytes = int(waiting * self.mean_bytes) + owner.flying
        room_bytes = sharing.room(sharing.ceiling(gauge.max_bytes, hold_s), gauge.bytes + gauge.flying, held_bytes)
        return min(messages, int(room_bytes // size))

    def scant_room(self, buffered: int, now: float) -> int:
        """Return how many more messages to buffer for a queue, lane or slot if `memory_room` returns none.

        A topic with nothing in flight may have one message, a quick topic as many as it starts before it can read
        again. Otherwise tenants that hang with large messages would slow all others down.

        Args:
            buffered: messages that the host has buffered of this queue, lane or slot.
        """
        owner = self.owner
        hold_s = owner.pace.hold_s(int(now * 1e6))
        if not owner.pace.known or hold_s > sharing.UNKNOWN_S:
            return int(not buffered and not owner.flying)
        few = min(math.ceil(self.quota * (hold_s + SOON_S)), int(SCANT_BYTES // (self.mean_bytes or UNKNOWN_BYTES)))
        return max(1, few) - buffered - self.in_flight

    def unsaved(self) -> int:
        """Return the number of finished messages that no checkpoint covers; a crash would repeat them."""
        return sum([queue.tracker.total() - queue.covered for queue in self.queues])

    def add(self, queue: OwnedQueue) -> None:
        """Add the queue of the next priority."""
        self.queues.append(queue)
        self.buffers.append(deque())
        self.ahead += queue.position - queue.covered

    def lane_claimed(self, n: int) -> None:
        """Count `n` entries that were claimed from the lane."""
        self.lane_out += n

    def lane_settled(self) -> None:
        """Count an entry of the lane as settled, also if the store refused its verdict."""
        self.lane_out -= 1

    def finish_key(self, key: str) -> None:
        """Release a key whose message is settled, as `release_key` does.

        In a sorted topic, first ask the store whether messages that wait for the key were sent again.
        """
        slot = self.slot
        if slot is not None and slot.claims is not None and (0, key) in self.blocked:
            self.running.setdefault(key, 0)
            slot.freed[key] = None
            slot.claims.look(slot)
        else:
            self.release_key(key)


class OwnedSlot(SlotState):
    """A slot that this host owns, with the group that claims from it.

    Attributes:
        claims: told when there is more to do; None before the slot is acquired.
    """

    __slots__ = ("claims", "group")

    def __init__(self, group: OwnedGroup, slot: Slot) -> None:
        super().__init__(slot)
        self.group = group
        self.claims: Claims | None = None

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

    def begin_settling(self) -> None:
        """A call that settles members of the slot is under way."""
        self.settling += 1

    def end_settling(self) -> None:
        self.settling -= 1
        if self.suspect and not self.settling:
            self.look()

    def begin_doubt(self) -> None:
        """The answer to a verdict was lost; it will be sent again."""
        self.unsure += 1

    def end_doubt(self) -> None:
        self.unsure -= 1
        if not self.unsure:
            self.look()

    def wait_for_room(self) -> None:
        """Wait in the topic's `thirsty` until it has room in flight."""
        if not self.thirsty:
            self.thirsty = True
            self.group.owner.thirsty.append(self)
            self.group.owner.note_waiting()

    def look(self) -> None:
        """The slot has changed: plan the next look at it."""
        if self.claims is not None:
            self.claims.look(self)

    def _by_second(self) -> bool:
        return self.slot.kind is SlotKind.FIXED_TIME and self.group.owner.topic.options.precision == "second"


class Claims:
    """Claims from slots, as the dispatcher sees them: it reports when messages cannot start, and when they can again.

    The host claims nothing ahead from a slot: members that wait in the slot merge with later publishes, and claimed
    messages do not.
    """

    def stuck(self, group: OwnedGroup, room: bool = False) -> None:
        """The claimed messages of the group cannot start now; `room`: because the topic has no room in flight."""

    def has_room(self, owner: OwnedTopic) -> None:
        """The topic has room in flight again, and slots that wait for room."""

    def look(self, slot: OwnedSlot) -> None:
        """The slot has changed: plan the next look at it."""
