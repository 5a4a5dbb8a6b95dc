"""The world: the queues, lanes, slots, fences and alarms that the instances of one memory store share."""

from __future__ import annotations

import copy
import heapq
import math
import weakref
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from emq.runtime import errors
from emq.runtime.clock import Clock, SystemClock
from emq.storage.lane_store import AHEAD_S, MOST_TAKEN, TAKEN_S, EntryState, LaneClaim
from emq.storage.log_store import fresh_places, new_incarnation
from emq.storage.marks import Mark, digest
from emq.storage.store import Ended
from emq_stores import refusals
from emq_stores.memory.slot_members import SortedSlot
from emq_stores.memory.wakeups import Wakeups

FIRST_OFFSET = 1


@dataclass(slots=True, eq=False)
class Queue:
    """A log queue: a list of bodies and the offset of its first cell; a cell with None is a hole.

    A trim empties cells at the front at once, which frees the bodies. It cuts these cells off only once they are half
    of the list. So a trim is cheap for a backlog of any length.
    """

    base: int = FIRST_OFFSET
    cells: list[bytes | None] = field(default_factory=list)
    trimmed: int = 0
    holes: int = 0
    sealed: bool = False
    layout: int = 0
    incarnation: int = field(default_factory=new_incarnation)

    @property
    def head(self) -> int:
        return self.base + self.trimmed

    @property
    def tail(self) -> int:
        return self.base + len(self.cells)

    def held(self) -> int:
        """Return the number of messages, without holes."""
        return len(self.cells) - self.trimmed - self.holes

    def body(self, offset: int) -> bytes | None:
        return self.cells[offset - self.base] if self.head <= offset < self.tail else None

    def trim(self, upto: int) -> None:
        begin = self.trimmed
        end = min(upto - self.base, len(self.cells))
        if end <= begin:
            return
        if self.holes:
            self.holes -= self.cells[begin:end].count(None)
        if end * 2 >= len(self.cells):
            del self.cells[:end]
            self.base += end
            self.trimmed = 0
        else:
            self.cells[begin:end] = [None] * (end - begin)
            self.trimmed = end

    def drop_oldest(self, count: int) -> None:
        """Trim the oldest `count` messages."""
        offset = self.head
        while count:
            count -= self.cells[offset - self.base] is not None
            offset += 1
        self.trim(offset)

    def lacks(self, mark: Mark) -> bool:
        """Return True if the mark's message was lost: its offset is beyond the tail, or has another body; a hole proves
        nothing."""
        if mark.offset >= self.tail:
            return True
        body = self.body(mark.offset)
        return body is not None and digest(body) != mark.digest

    def lose(self, offset: int) -> bool:
        if self.body(offset) is None:
            return False
        self.cells[offset - self.base] = None
        self.holes += 1
        return True


class Prepared(NamedTuple):
    """A claimed entry: the epoch and time of the claim, its priority, and its due time."""

    epoch: int
    claimed_ms: int
    priority: int
    due_ms: int


@dataclass(slots=True, eq=False)
class Lane:
    """The entries of a lane. An id in `bodies` is prepared or dead, or it waits in the heap of its priority."""

    bodies: dict[str, bytes] = field(default_factory=dict)
    waiting: dict[int, list[tuple[int, str]]] = field(default_factory=dict)
    prepared: dict[str, Prepared] = field(default_factory=dict)
    dead: dict[str, tuple[int, str]] = field(default_factory=dict)
    dead_order: list[tuple[int, str]] = field(default_factory=list)

    def next_due_ms(self) -> int | None:
        return min((heap[0][0] for heap in self.waiting.values()), default=None)

    def wait(self, id_: str, priority: int, due_ms: int) -> None:
        heapq.heappush(self.waiting.setdefault(priority, []), (due_ms, id_))

    def take(self, now_ms: int, claim: LaneClaim, max_bytes: int) -> Iterator[tuple[str, int, int]]:
        """Take due entries within the claim's limits, up to `max_bytes`; yield id, priority and due time."""
        left, rooms = claim.limit, list(claim.rooms)
        for priority in sorted(self.waiting):
            heap = self.waiting[priority]
            room = min(priority, len(rooms) - 1)
            while heap and heap[0][0] <= now_ms and left > 0 and max_bytes > 0 and (not rooms or rooms[room] > 0):
                due_ms, id_ = heapq.heappop(heap)
                max_bytes -= len(self.bodies[id_])
                yield id_, priority, due_ms
                left -= 1
                if rooms:
                    rooms[room] -= 1
            if not heap:
                del self.waiting[priority]

    def state(self, id_: str) -> EntryState:
        if id_ in self.dead:
            return EntryState.DEAD
        return EntryState.PREPARED if id_ in self.prepared else EntryState.WAITING

    def is_claimed_as(self, id_: str, due_ms: int, body: bytes) -> bool:
        """Return True if the entry was claimed with this due time and this body."""
        claimed = self.prepared.get(id_)
        return claimed is not None and claimed.due_ms == due_ms and self.bodies[id_] == body

    def take_back(self, id_: str) -> bool:
        """Remove a waiting entry; return whether it was waiting. Walks over all entries, which is quick in memory."""
        if id_ not in self.bodies or id_ in self.prepared or id_ in self.dead:
            return False
        priority = next(p for p, heap in self.waiting.items() if any(entry[1] == id_ for entry in heap))
        kept = [entry for entry in self.waiting.pop(priority) if entry[1] != id_]
        if kept:
            heapq.heapify(kept)
            self.waiting[priority] = kept
        return True

    def bury(self, id_: str, reason: str, now_ms: int) -> None:
        self.dead[id_] = (now_ms, reason)
        insort(self.dead_order, (now_ms, id_))

    def unbury(self, id_: str) -> bool:
        if id_ not in self.dead:
            return False
        dead_ms, _ = self.dead.pop(id_)
        del self.dead_order[bisect_right(self.dead_order, (dead_ms, id_)) - 1]
        return True


class World:
    """The data of one memory store. Simulations make one and open a `MemoryStore` on it for each host.

    Args:
        clock: gives the time of death of a dead letter; callers give all other times.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self.queues: dict[str, Queue] = {}
        self.lanes: dict[str, Lane] = {}
        self.sorted: dict[str, SortedSlot] = {}
        self.armed: dict[str, Wakeups] = {}
        self.alarms: dict[str, tuple[float, Wakeups]] = {}
        self.sealed: set[str] = set()  # lanes by name, slots by address
        self.taken: dict[str, dict[str, int]] = {}  # lane -> id of an entry taken for good -> ms, first taken first
        self.remembered: dict[str, dict[str, int]] = {}  # group -> id of a publish -> ms until which it is remembered
        self._epochs: dict[str, int] = {}
        # In the order in which they joined, which a `WeakSet` would forget: each simulation has to be like the next.
        self._instances: weakref.WeakKeyDictionary[Wakeups, None] = weakref.WeakKeyDictionary()

    def joined(self, wakeups: Wakeups) -> None:
        """Register the wake-ups of a store instance that opened this world."""
        self._instances[wakeups] = None

    def tell(self, topics: Iterable[str]) -> None:
        """Wake all instances."""
        for wakeups in [*self._instances]:
            for topic in topics:
                wakeups.wake(topic)

    def _stored(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("clock", "_instances")}

    def snapshot(self) -> object:
        """Return a copy of all stored data, for `restore`."""
        return copy.deepcopy(self._stored())

    def restore(self, snapshot: Any | None) -> None:
        """Return to a snapshot, like a server that lost its last writes; None empties the world.

        The world tells every instance that wake-ups may be lost, as after a broken connection.
        """
        vars(self).update(World()._stored() if snapshot is None else copy.deepcopy(snapshot))
        for wakeups in self._instances:
            wakeups.lose()

    def open(self, name: str) -> bool:
        """Open a lane or slot; return whether it was sealed."""
        was_sealed = name in self.sealed
        self.sealed.discard(name)
        return was_sealed

    def remember_taken(self, lane: str, id_: str) -> None:
        """Remember that an entry was taken for good; forget the entries taken too long ago, and the oldest if too many.

        Entries stay in the order of the calls, since the callers' clocks may differ.
        """
        taken, now_ms = self.taken.setdefault(lane, {}), self.clock.now_us() // 1000
        taken.pop(id_, None)
        taken[id_] = now_ms
        while len(taken) > MOST_TAKEN or next(iter(taken.values())) < now_ms - (TAKEN_S + AHEAD_S) * 1000:
            del taken[next(iter(taken))]

    def is_taken(self, lane: str, id_: str, since_ms: int) -> bool:
        taken_ms = self.taken.get(lane, {}).get(id_)
        return taken_ms is not None and taken_ms >= since_ms

    def forget_taken(self, lane: str, id_: str) -> None:
        taken = self.taken.get(lane)
        if taken is not None and taken.pop(id_, None) is not None and not taken:
            del self.taken[lane]

    def fresh(self, group: str, ids: Sequence[str]) -> dict[str, int]:
        """Return the ids that the group does not remember, each once, with their places in `ids`."""
        known, now_ms = self.remembered.get(group, {}), self.clock.now_us() // 1000
        return fresh_places(ids, lambda id_: known.get(id_, 0) > now_ms)

    def remember(self, group: str, ids: Iterable[str], for_ms: int) -> None:
        """Let the group remember ids of publishes; forget those whose time is over."""
        known, now_ms = self.remembered.setdefault(group, {}), self.clock.now_us() // 1000
        for id_ in ids:
            known.pop(id_, None)  # so that the order is that of the publishes
            known[id_] = now_ms + for_ms
        while known and next(iter(known.values())) <= now_ms:
            del known[next(iter(known))]

    def forget(self, ended: Ended) -> Sequence[int] | None:
        """Forget a group; see `emq.storage.store.Store`."""
        lane, address = self.lanes.get(ended.lane), "" if ended.slot is None else ended.slot.address
        queues = [self.queues.get(name) for name in ended.queues]
        slot = self.sorted.get(address[:-1])
        is_idle = ended.lane in self.sealed and (lane is None or not lane.bodies)
        is_idle &= all(queue is not None and queue.sealed and not queue.held() for queue in queues)
        if address:
            is_idle &= address in self.sealed
            is_idle &= slot is None or not (slot.waiting or slot.prepared or slot.dead)
        if not is_idle:
            return None
        is_marked = self._epochs.get(ended.lane) == ended.mark and (slot is None or slot.epoch == ended.mark)
        if not is_marked:
            self._epochs[ended.lane] = ended.mark
            if slot is not None:
                slot.epoch = ended.mark
            return None
        for name in ended.queues:
            self.armed.pop(name, None)
            self.queues.pop(name)
        for known in (self.lanes, self.alarms, self.taken, self.remembered, self._epochs):
            known.pop(ended.lane, None)
        self.sorted.pop(address[:-1], None)
        self.sealed.difference_update((ended.lane, address))
        return [queue.tail for queue in queues if queue is not None]

    def queue(self, name: str) -> Queue:
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = Queue()
        return queue

    def lane(self, name: str) -> Lane:
        lane = self.lanes.get(name)
        if lane is None:
            lane = self.lanes[name] = Lane()
        return lane

    def fence(self, group: str, epoch: int) -> errors.NotOwner | None:
        """Note `epoch` as the group's highest, or return `NotOwner`. One fence guards a group's queues and lane."""
        return refusals.fence(self._epochs, group, epoch)

    def arm(self, queue: str, wakeups: Wakeups) -> None:
        wakeups.forget(queue)
        self.armed[queue] = wakeups

    def arm_lane(self, name: str, next_due_ms: int | None, wakeups: Wakeups) -> None:
        wakeups.forget(name)
        self.alarms[name] = (math.inf if next_due_ms is None else next_due_ms, wakeups)

    def is_armed(self, name: str, now_ms: int, wakeups: Wakeups) -> bool:
        """Return whether a queue or lane would wake this instance, and holds nothing that is due already."""
        due_ms, owner = self.alarms.get(name, (math.inf, self.armed.get(name)))
        return owner is wakeups and due_ms > now_ms

    def wait(self, name: str, id_: str, priority: int, due_ms: int) -> None:
        """Let an entry wait in its lane; wake the lane's claimer if the entry is due before all others."""
        self.lane(name).wait(id_, priority, due_ms)
        alarm = self.alarms.get(name)
        if alarm is not None and due_ms < alarm[0]:
            del self.alarms[name]
            alarm[1].wake(name)
