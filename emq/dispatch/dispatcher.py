"""The main loop: starts messages, group by group, under each group's counter."""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol, cast

from emq import errors
from emq.clock import Clock
from emq.lease import Lease
from emq.message import Message
from emq.owned import BatchHandler, Handler, OwnedGroup, OwnedQueue, OwnedTopic
from emq.trail.sink import TrailSink

log = logging.getLogger(__name__)

VISIT = 64
"""Most messages started in one visit to a group, before the rotation goes on to the next."""

STINT_S = 0.002
"""How long messages are started before the event loop gets to serve the network again."""

GRID_S = 1 / 256
"""Parked groups wake on this grid, so that thousands of smooth counters share some 256 wake-ups a second. A power of
two, so that whole seconds lie on it exactly."""

MAX_IN_FLIGHT = 20_000
"""Messages started and not settled on one host, over all topics."""


class Outcomes(Protocol):
    """Where the dispatcher reports the messages whose settling needs the store."""

    def acknowledge(self, group: OwnedGroup, message: Message) -> None:
        """A message of a lane has succeeded."""

    def acknowledge_member(self, group: OwnedGroup, message: Message) -> None:
        """A message of a slot has succeeded."""

    def failed(self, group: OwnedGroup, message: Message, failure: BaseException) -> None:
        """A delivery has failed: retry or dead letter."""

    def expired(self, group: OwnedGroup, message: Message) -> None:
        """A message has outlived its time to live: dead letter."""


class Dispatcher:
    """Visits the groups that have buffered messages and quota, in rotation.

    The loop is `_stint`. It runs as a task that takes the next group of the rotation, reserves a few starts from the
    group's counter, and awaits the handler of one message after the other. A handler that never suspends costs a
    function call. When one does suspend, its stint is suspended with it and a fresh stint takes over the rotation
    (`_hand_over`); the suspended one settles its own message when the handler returns, and ends. So each message
    runs in a real task, where `asyncio.timeout` and cancellation mean what they say, and only those that wait pay
    for one.

    States of a group: *idle* (nothing to start), *in rotation*, *parked* (its counter allows more only later; one
    timer for all), *waiting* (its topic has no room in flight). `ready` takes it from idle into rotation; the stint
    moves it on; the timer and settled messages bring it back.

    Fair: a visit ends after `VISIT` messages, a stint after `STINT_S`, so a group waits for at most one visit to
    each of the others. Nothing here is done for an idle group.
    """

    def __init__(
        self,
        clock: Clock,
        outcomes: Outcomes,
        trail: TrailSink,
        on_drained: Callable[[OwnedGroup], None],
        on_dirty: Callable[[OwnedQueue], None],
        max_in_flight: int = MAX_IN_FLIGHT,
        lease: Lease | None = None,
    ) -> None:
        """Args:
        on_drained: called after a visit, when some of the group's buffers may want to be refilled.
        on_dirty: called when a queue's progress changed for the first time since its last checkpoint.
        lease: past it nothing is started; None for one without an end.
        """
        self._lease = lease or Lease()
        self._lease.on_renewed.append(self._wake)
        self._clock = clock
        self._outcomes = outcomes
        self._trail = trail
        self._on_drained = on_drained
        self._on_dirty = on_dirty
        self._max_in_flight = max_in_flight
        self._rotation: deque[OwnedGroup] = deque()
        self._parked: dict[float, list[OwnedGroup]] = {}
        self._deadlines: list[float] = []
        self._timer: asyncio.TimerHandle | None = None
        self._driver: object | None = None
        self._visited: OwnedGroup | None = None
        self._granted = 0
        self._uncounted = 0  # messages with the visit's handler that count as in flight only once it suspends
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting = True
        self._cancelling = False
        self.in_flight = 0
        self.started = 0
        self.succeeded = 0
        self.failed = 0
        self.expired = 0

    # ------------------------------------------------------------------------------------------------- what comes in

    def ready(self, group: OwnedGroup) -> None:
        """The group has something to start; put it into the rotation unless it is on its way already."""
        if not group.listed and not group.stopping:
            group.listed = True
            self._rotation.append(group)
            self._wake()

    def recheck(self, group: OwnedGroup) -> None:
        """The group's quota or its topic's limits changed: look at it now, wherever it is parked."""
        for parked in self._parked.values():
            if group in parked:
                parked.remove(group)
                group.listed = False
        if group in group.owner.waiting:
            group.owner.waiting.remove(group)
            group.listed = False
        if group.buffered:
            self.ready(group)

    def wanted(self, owner: OwnedTopic) -> None:
        """The topic's receiver wants more; start what waits for that."""
        self._pass_room_on(owner)
        self._wake()

    def settled(self, group: OwnedGroup, message: Message) -> None:
        """The store knows what becomes of a message that was not a success; it no longer counts as in flight."""
        if message.offset >= 0:
            self._finish(group, message)
        self._leave_flight(group, message)

    def acknowledged(self, group: OwnedGroup, n: int) -> None:
        """The store knows that `n` messages of the group's slot or lane are done; their keys were let go of before."""
        owner = group.owner
        owner.in_flight -= n
        group.in_flight -= n
        self.in_flight -= n
        self._pass_room_on(owner)
        if self._driver is None:
            self._wake()

    def unsettled(self, group: OwnedGroup) -> int:
        """Messages of the group that were started and not settled.

        Also the one whose handler has just suspended and was not handed over yet, which `in_flight` does not count.
        """
        return group.in_flight + (self._driver is not None and self._visited is group)

    def expire(self, group: OwnedGroup, message: Message) -> None:
        """Dead-letter a message that was taken from its buffer too late to be started."""
        self.expired += 1
        self._enter_flight(group, 1)
        self._outcomes.expired(group, message)

    async def stop(self) -> None:
        """Start nothing more. Messages in flight go on; see `cancel`."""
        self._accepting = False
        if self._timer is not None:
            self._timer.cancel()

    async def cancel(self) -> None:
        """Cancel the handlers that still run. Their messages stay unfinished and will be delivered again."""
        self._cancelling = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ----------------------------------------------------------------------------------------------------- main loop

    def _wake(self) -> None:
        if self._driver is None and self._accepting and self._rotation and self._clock.now() < self._lease.until:
            self._driver = driver = object()
            task = asyncio.get_running_loop().create_task(self._stint(driver))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    async def _stint(self, driver: object) -> None:
        asyncio.get_running_loop().call_soon(self._hand_over, driver)
        now = self._clock.now()
        stint_ends = min(now + STINT_S, self._lease.until)
        while self._rotation and now < stint_ends and self.in_flight < self._max_in_flight and self._accepting:
            group = self._visited = self._rotation.popleft()
            owner = group.owner
            room = owner.room()
            if group.stopping or not group.buffered or owner.handler is None or group.busy:
                group.listed = False
                self._pass_room_on(owner)
                continue
            if room <= 0:
                owner.waiting.append(group)
                continue
            self._granted = group.counter.reserve(min(VISIT, group.buffered, room), now)
            if not self._granted:
                self._park(group, group.counter.next_at(now))
                self._pass_room_on(owner)
                continue
            if owner.batch_size > 1:
                still_driving = await self._visit_batches(group, driver, now)
            else:
                still_driving = await self._visit(group, driver, now)
            if not still_driving:
                return
            self._end_visit(group)
            now = self._clock.now()
        self._driver = None
        if self.in_flight < self._max_in_flight:
            asyncio.get_running_loop().call_soon(self._wake)

    async def _visit(self, group: OwnedGroup, driver: object, now: float) -> bool:
        """Start messages of one group while the grant lasts; False if a handler suspended and others took over."""
        owner = group.owner
        handler = cast(Handler, owner.handler)
        clock_now_us = self._clock.now_us
        trail = self._trail if self._trail.enabled else None
        # Also if the process was stopped meanwhile: the clock went on, and the lease with it.
        valid_until = min(group.counter.valid_until(now), self._lease.until)
        now_us, valid_until_us = int(now * 1e6), int(valid_until * 1e6)
        self._uncounted = 1
        while self._granted and now_us < valid_until_us:
            message = group.take(now_us)
            if message is None:
                break
            if 0 < message.expires_us <= now_us:
                self._expire_taken(group, message)
                continue
            self._granted -= 1
            message.started_us = now_us
            self.started += 1
            if trail is not None:
                trail.started(message, group.epoch)
            try:
                await handler(message)
            except (Exception, asyncio.CancelledError) as failure:
                if self._driver is driver:
                    self._enter_flight(group, 1)
                if self._is_cancelled(failure):
                    self._leave_flight(group, message)
                    raise
                self.failed += 1
                self._outcomes.failed(group, message, failure)
            else:
                if self._driver is driver and message.offset >= 0 and message.key is None:
                    # The handler did not suspend and the store need not know: it was never in flight for anybody.
                    self.succeeded += 1
                    if trail is not None:
                        trail.settled(message, clock_now_us())
                    self._finish(group, message)
                else:
                    if self._driver is driver:
                        self._enter_flight(group, 1)
                    self._succeeded(group, message)
            if self._driver is not driver:
                self._no_longer_busy(group)
                return False
            now_us = clock_now_us()
        return True

    async def _visit_batches(self, group: OwnedGroup, driver: object, now: float) -> bool:
        """As `_visit`, for a handler that takes lists."""
        owner = group.owner
        handler = cast(BatchHandler, owner.handler)
        valid_until = min(group.counter.valid_until(now), self._lease.until)
        self._uncounted = 0
        while self._granted and now < valid_until:
            size = 1 if group.serial else owner.batch_size  # those of one call run at the same time
            batch = self._take_batch(group, size, int(now * 1e6))
            if not batch:
                break
            try:
                await handler(batch)
            except (Exception, asyncio.CancelledError) as failure:
                if self._is_cancelled(failure):
                    for message in batch:
                        self._leave_flight(group, message)
                    raise
                self._batch_failed(group, batch, failure)
            else:
                for message in batch:
                    self._succeeded(group, message)
            if self._driver is not driver:
                self._no_longer_busy(group)
                return False
            now = self._clock.now()
        return True

    def _hand_over(self, driver: object) -> None:
        """Runs right after a stint's first step: if the stint still drives, it is suspended inside a handler."""
        if self._driver is driver:
            self._driver = None
            group = self._visited
            assert group is not None
            group.busy = group.serial
            self._enter_flight(group, self._uncounted)
            self._end_visit(group)
            self._wake()

    def _no_longer_busy(self, group: OwnedGroup) -> None:
        if group.busy:
            group.busy = False
            if group.buffered:
                self.ready(group)

    def _expire_taken(self, group: OwnedGroup, message: Message) -> None:
        if message.key is not None:
            group.finish_key(message.key)
        self.expire(group, message)

    def _end_visit(self, group: OwnedGroup) -> None:
        if self._granted:
            group.counter.release(self._granted, self._clock.now())
            self._granted = 0
        self._on_drained(group)
        if group.buffered and not group.stopping and not group.busy:
            self._rotation.append(group)
        else:
            group.listed = False
        self._pass_room_on(group.owner)

    def _pass_room_on(self, owner: OwnedTopic) -> None:
        """Let the next group that waits for room in flight have what the one before could not use."""
        if owner.waiting and owner.room() > 0:
            self._rotation.append(owner.waiting.pop(0))

    # ------------------------------------------------------------------------------------------- parking and settling

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (bug := task.exception()) is not None:
            log.error("a stint of the dispatcher broke; it goes on with the next group", exc_info=bug)
            self._driver = None
            self._wake()

    def _park(self, group: OwnedGroup, until: float) -> None:
        if until == float("inf"):
            group.listed = False
            return
        until = math.ceil(until / GRID_S) * GRID_S
        parked = self._parked.get(until)
        if parked is None:
            parked = self._parked[until] = []
            heapq.heappush(self._deadlines, until)
            if self._deadlines[0] == until:
                self._set_timer()
        parked.append(group)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay = max(0.0, self._deadlines[0] - self._clock.now())
        self._timer = asyncio.get_running_loop().call_later(delay, self._unpark)

    def _unpark(self) -> None:
        """Bring back the groups whose time has come."""
        self._timer = None
        now = self._clock.now()
        while self._deadlines and self._deadlines[0] <= now:
            self._rotation.extend(self._parked.pop(heapq.heappop(self._deadlines)))
        if self._deadlines:
            self._set_timer()
        self._wake()

    def _take_batch(self, group: OwnedGroup, size: int, now_us: int) -> list[Message]:
        batch: list[Message] = []
        while len(batch) < size and self._granted and (message := group.take(now_us)) is not None:
            if 0 < message.expires_us <= now_us:
                self._expire_taken(group, message)
                continue
            self._granted -= 1
            message.started_us = now_us
            batch.append(message)
            if self._trail.enabled:
                self._trail.started(message, group.epoch)
        self._enter_flight(group, len(batch))
        self.started += len(batch)
        return batch

    def _batch_failed(self, group: OwnedGroup, batch: list[Message], failure: BaseException) -> None:
        failures: Mapping[str, BaseException] = {m.id: failure for m in batch}
        if isinstance(failure, errors.PartialFailure):
            failures = failure.failures
        for message in batch:
            if (reason := failures.get(message.id)) is not None:
                self.failed += 1
                self._outcomes.failed(group, message, reason)
            else:
                self._succeeded(group, message)

    def _succeeded(self, group: OwnedGroup, message: Message) -> None:
        self.succeeded += 1
        if self._trail.enabled:
            self._trail.settled(message, self._clock.now_us())
        if message.offset >= 0:
            self._finish(group, message)
            self._leave_flight(group, message)
            return
        if message.key is not None:
            # Its handler is done: the next of its key need not wait for the store to hear of it.
            group.finish_key(message.key)
            if group.buffered:
                self.ready(group)
        if message.member is not None:
            self._outcomes.acknowledge_member(group, message)
        else:
            self._outcomes.acknowledge(group, message)

    def _finish(self, group: OwnedGroup, message: Message) -> None:
        queue = group.queues[message.priority]
        queue.tracker.finish(message.offset)
        if not queue.dirty:
            queue.dirty = True
            self._on_dirty(queue)

    def _enter_flight(self, group: OwnedGroup, n: int) -> None:
        group.owner.in_flight += n
        group.in_flight += n
        self.in_flight += n

    def _leave_flight(self, group: OwnedGroup, message: Message) -> None:
        owner = group.owner
        owner.in_flight -= 1
        group.in_flight -= 1
        self.in_flight -= 1
        if message.key is not None and message.started_us:
            group.finish_key(message.key)
            if group.buffered:
                self.ready(group)
        self._pass_room_on(owner)
        if self._driver is None:
            self._wake()

    def _is_cancelled(self, failure: BaseException) -> bool:
        """True if the host is cancelling its stints; a handler that cancels itself, or what it awaits, has failed."""
        if not isinstance(failure, asyncio.CancelledError):
            return False
        task = asyncio.current_task()
        while not self._cancelling and task is not None and task.cancelling():
            task.uncancel()  # or the timeouts of later handlers in this stint would take it for theirs
        return self._cancelling
