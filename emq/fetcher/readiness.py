"""The readiness loop: turns the store's wake-ups into lanes and slots to claim from, and queues to read.

A queue is worth reading if it has more in the store, and room in its buffer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TypeVar

from emq.groups import reading_ahead
from emq.groups.context import HostContext
from emq.groups.events import HostEvents
from emq.groups.owned import OwnedGroup, OwnedQueue
from emq.runtime import errors, pace
from emq.runtime.slicing import in_slices
from emq.storage.store import Store

T = TypeVar("T")

MOVING = 2_000
"""Most messages of one priority of a group that may wait for their keys while keys move between groups."""

LOOKED_AT = 500
"""Most queues, or names of wake-ups, that are looked at before the event loop serves other tasks."""

SWEEP_S = 120.0
"""Seconds in which the host asks the store once about every owned queue and lane, in slices: which are not armed? This
finds lost wake-ups that the store's own sweep cannot see (after a failover to a replica that lagged)."""

SLICES = 120
"""One a second. A question is about several slices, of at most `ASKED` names or `TOGETHER` slices: its cost is mostly
that of waking a process that has slept."""

ASKED = 2_000
TOGETHER = 10

AFTER_BUG_S = 10.0
"""Least seconds between two looks at everything that follow unexpected failures. A loop that broke may have dropped
what it was about to look at."""


class Readiness:
    """The queues to read next, each at most once, in the order in which they became ready.

    A queue is listed when it is acquired, when the store wakes it, and when its buffer has drained to half while the
    store holds more. Idle queues are not listed, and cost nothing.

    Args:
        on_held: called when a queue of messages that may expire, or may be withdrawn, is read no further before its
            group's progress is saved. Such messages use up no quota, so nothing but the saves limits how fast they go;
            and the others wait behind them.
        events: told of a group whose queue cannot be looked at.
    """

    def __init__(self, on_held: Callable[[], None] = lambda: None, events: HostEvents | None = None) -> None:
        self._on_held = on_held
        self._events = events or HostEvents()
        self._queues: deque[OwnedQueue] = deque()
        self._ahead: dict[OwnedQueue, None] = {}
        self._something = asyncio.Event()
        self._typical = 1.0

    def __len__(self) -> int:
        return len(self._queues)

    def woken(self, queue: OwnedQueue) -> None:
        """The store says that the queue received messages.

        This wake-up may overtake the answer of an earlier read, on another connection, that found the queue empty. So
        that answer leaves `queue.woken` set.
        """
        queue.wake()
        self.add(queue)

    def drained(self, group: OwnedGroup) -> None:
        """Some of the group's messages were taken: list the group's queues that want a refill."""
        for queue, buffer in zip(group.queues, group.buffers, strict=True):
            if queue.more and not queue.listed and len(buffer) * 2 <= queue.capacity:
                self.add(queue)

    def add(self, queue: OwnedQueue) -> None:
        if queue.listed or not queue.more:
            return
        if wanted(queue) > 0:
            queue.enlist()
            self._queues.append(queue)
            self._something.set()
        elif reading_ahead.is_held(queue):
            self._hold(queue)

    def _hold(self, queue: OwnedQueue) -> None:
        self._ahead[queue] = None
        owner = queue.group.owner
        if owner.topic.may_expire or owner.withdraws is not None:
            self._on_held()

    def checkpointed(self) -> None:
        """Progress was saved: list the queues that were too far ahead of their checkpoint to be read."""
        waiting, self._ahead = self._ahead, {}
        self._add_again(list(waiting))

    def _add_again(self, waiting: list[OwnedQueue]) -> None:
        """Add queues a slice at a time: after an outage of the database, all queues may be waiting."""
        for queue in waiting[:LOOKED_AT]:
            try:
                if not queue.group.stopping:
                    self.add(queue)
            except Exception as exc:  # a bug at one queue must not lose those behind it
                self._events.broken("fetch", queue.group, exc)
        if len(waiting) > LOOKED_AT:
            asyncio.get_running_loop().call_soon(self._add_again, waiting[LOOKED_AT:])

    def take(self, max_queues: int, max_messages: int) -> list[tuple[OwnedQueue, int]]:
        """Return up to `max_queues` queues with the number of messages that each wants, about `max_messages` in all.

        The queues stay listed. Each counts with the messages that it probably holds, so that one read covers many
        nearly empty queues or a few full ones. The result may be empty although more queues are listed: queues of a
        paused topic want nothing.
        """
        taken: list[tuple[OwnedQueue, int]] = []
        messages, looked = 0.0, 0
        while self._queues and len(taken) < max_queues and messages < max_messages and looked < LOOKED_AT:
            queue = self._queues.popleft()
            looked += 1
            try:
                want = wanted(queue)
                if want <= 0:
                    queue.delist()
                    if reading_ahead.is_held(queue):
                        self._hold(queue)
                    continue
                queue.begin_read()
            except Exception as exc:  # a bug at one queue must not lose the queues that were taken before it
                self._events.broken("fetch", queue.group, exc)
                continue
            taken.append((queue, want))
            messages += min(want, queue.expected or self._typical)
        if not self._queues:
            self._something.clear()
        return taken

    def found(self, queue: OwnedQueue, messages: int, exhausted: bool) -> None:
        """Note how many messages a read of the queue found, as an estimate for the next read.

        The estimate for a queue that was never read comes from other queues.
        """
        queue.expected = max(1, messages if exhausted else messages * 2)
        self._typical += (messages - self._typical) / 64

    async def wait(self) -> None:
        """Return once a queue is listed."""
        await self._something.wait()


class Waker:
    """Listens to the store; knows queues, lanes and slots by name.

    Attributes:
        woken: number of wake-ups received.
        doubts: number of times that wake-ups may have been lost, so that the host looked at everything.
    """

    def __init__(
        self,
        store: Store,
        queues: Mapping[str, OwnedQueue],
        groups: Mapping[str, OwnedGroup],
        readiness: Readiness,
        context: HostContext,
        broken: Callable[[], int] = lambda: 0,
        on_topic: Callable[[str], None] = lambda topic: None,
    ) -> None:
        """Args:
        broken: returns how many unexpected failures the host's loops have had.
        on_topic: called with each topic that somebody told; see `Store.watch`.
        """
        self._broken, self._on_topic = broken, on_topic
        self._events, self._lease, self._clock = context.events, context.lease, context.clock
        self._store = store
        self._queues = queues
        self._groups = groups
        self._readiness = readiness
        self._wakeups: AsyncIterator[Sequence[str] | None] | None = None
        self._doubted = 0  # unexpected failures before the last look at everything
        self.woken = 0
        self.doubts = 0

    def open(self) -> None:
        """Start watching the store. Raises `HostConflict` if only one host may watch it and another host does."""
        self._wakeups = self._store.watch()

    async def listen(self) -> None:
        """Pass on wake-ups as they come. Ends by cancellation, or when the store closes."""
        if self._wakeups is None:  # the watch broke before: wake-ups since then are lost
            self.open()
            await self._doubt()
        assert self._wakeups is not None
        wakeups, self._wakeups = self._wakeups, None
        async for names in wakeups:
            if names is None:
                await self._doubt()
                continue
            self.woken += len(names)
            await self._pass_on(names)

    async def _pass_on(self, names: Sequence[str]) -> None:
        async for name in in_slices(names, LOOKED_AT):
            if (queue := self._queues.get(name)) is not None:
                self._readiness.woken(queue)
            elif "/" in name:
                self._events.due(name, 0)
            else:
                self._on_topic(name)

    async def _doubt(self) -> None:
        """Look at all lanes, queues and slots of the host. The lane comes first: it notes the time of this look."""
        self.doubts += 1
        groups = list(self._groups.values())
        async for group in in_slices(groups, LOOKED_AT):
            if self._groups.get(group.name) is not group:
                continue
            try:
                self._events.doubted(group)
                for queue in group.queues:
                    self._readiness.woken(queue)  # a read under way does not do: the store may forget that it armed
                if group.slot is not None:
                    self._events.due(group.slot.address, 0)
            except Exception as exc:  # a bug at one group must not keep the others from being looked at
                self._events.broken("fetch", group, exc)

    async def sweep(self) -> None:
        """Look at all queues and lanes in slices, at everything after a bug. Ends by cancellation."""
        looked_s = float("-inf")
        while True:
            queues, lanes = list(self._queues), list(self._groups)  # names, which keep nothing that is let go of
            together = min(max(1, SLICES * ASKED // (1 + len(queues) + len(lanes))), TOGETHER)
            for i in range(SLICES):
                await pace.rest(SWEEP_S / SLICES)
                if not lanes:
                    break  # the host has its groups from now on, perhaps
                now_s = asyncio.get_running_loop().time()
                if (broken := self._broken()) != self._doubted and now_s - looked_s >= AFTER_BUG_S:
                    looked_s = now_s
                    await self._doubt()
                    self._doubted = broken  # not before: if the look breaks, it comes again
                if i % together:
                    continue
                await self._lease.valid(self._clock)
                await self._pass_on(await self._unarmed([*_slices(queues, i, together), *_slices(lanes, i, together)]))

    async def _unarmed(self, names: Sequence[str]) -> Sequence[str]:
        """Return the names that the store would not wake; all names if the store cannot tell."""
        with contextlib.suppress(errors.EMQError):  # who looks at them then meets the same error, and tries again
            if (unarmed := getattr(self._store, "unarmed", None)) is not None:
                return await unarmed(names, int(self._clock.now() * 1000))  # type: ignore[no-any-return]
        return names


def _slices(names: Sequence[T], i: int, together: int) -> Sequence[T]:
    """Return some of `SLICES` parts of the names, from the `i`-th on."""
    size = -(-len(names) // SLICES)
    return names[i * size : (i + together) * size]


def wanted(queue: OwnedQueue) -> int:
    """Return the room in the queue's buffer; 0 while its group stops, pauses, or holds too many messages of busy keys.

    Held messages count by priority, because held messages of one priority must not keep a higher priority in the store.
    The room is smaller if a crash would repeat too many messages: see `OwnedGroup.allowance`.
    """
    group = queue.group
    owner = group.owner
    if group.stopping or (owner.handler is None and not owner.topic.may_expire):
        return 0  # messages that may expire are read even if the topic is paused or has no handler
    if owner.is_overfull():
        return 0
    if group.held >= 4 * queue.capacity and _holds_too_many(queue):
        return 0
    room = queue.capacity - len(group.buffers[queue.priority])
    if group.ahead + room <= group.allowance:  # as nearly always
        return room
    return min(room, reading_ahead.left(queue))


def _holds_too_many(queue: OwnedQueue) -> bool:
    """Return True if the messages of the queue's priority that wait for their keys have come to their limit.

    The limit is higher while keys move: right after the change, an old message may lie behind new ones that wait for
    it.
    """
    group = queue.group
    held = sum([len(waiting) for (of, _), waiting in group.blocked.items() if of == queue.priority])
    return held >= (4 * queue.capacity if group.owner.gate is None else max(4 * queue.capacity, MOVING))
