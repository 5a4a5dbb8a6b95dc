"""The main loop: starts messages, group by group, under each group's counter."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from emq.clock import LONGEST_TIMER_S, Clock
from emq.dispatch import retry
from emq.groups.owned import BatchHandler, Broken, Claims, Handler, OwnedGroup, OwnedQueue, OwnedTopic
from emq.groups.receiver import Receiver
from emq.loops.lease import Lease
from emq.message import Message
from emq.places import sharing
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

LOOK_AGAIN_S = 0.25
LOOK_AGAIN = 64
"""While topics wait for places: how many of them are looked at again in this time, though nothing became free. As many
topics of a receiver are looked at in one go when it wants more."""


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

    def damaged(self, group: OwnedGroup, message: Message, reason: str) -> None:
        """A message could not be decoded: dead letter."""


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

    In flight, all topics share `max_in_flight` places, see `emq.places.sharing`. A topic that finds none waits in
    `_crowd` until enough are free, and is looked at again every `LOOK_AGAIN_S`, because its slowness is forgotten in
    time.

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
        claims: Claims | None = None,
    ) -> None:
        """Args:
        on_drained: called after a visit, when some of the group's buffers may want to be refilled.
        on_dirty: called when a queue's progress changed for the first time since its last checkpoint.
        lease: past it nothing is started; None for one without an end.
        claims: of the slots of sorted topics; None where there are none.
        """
        self._claims = claims or Claims()
        self._lease = lease or Lease()
        self._lease.on_renewed.append(self._wake)
        self._clock = clock
        self._outcomes = outcomes
        self._trail = trail
        self._on_drained = on_drained
        self._on_dirty = on_dirty
        self._max_in_flight = max_in_flight
        self._crowd: sharing.Crowd[OwnedTopic] = sharing.Crowd()
        self._looking: asyncio.TimerHandle | None = None
        self._rotation: deque[OwnedGroup] = deque()
        self._parked: dict[float, dict[OwnedGroup, None]] = {}
        self._deadlines: list[float] = []
        self._timer: asyncio.TimerHandle | None = None
        self._driver: object | None = None
        self._visited: OwnedGroup | None = None
        self._granted = 0
        self._running: Message | None = None  # with the visit's handler; in flight only once it suspends
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting = True
        self._cancelling = False
        self.on_broken: Broken | None = None
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
        parked = self._parked.get(group.parked_until)
        if parked is not None and group in parked:
            del parked[group]
            group.listed = False
        # Those that wait for room come one after the other, as far as there is any.
        self._pass_room_on(group.owner)
        self._wake()
        if group.buffered:
            self.ready(group)

    def wanted(self, receiver: Receiver, topics: int | None = None) -> None:
        """The receiver wants more; start what waits for that, some topics at a time, each once."""
        waiting = receiver.unasked
        left = len(waiting) if topics is None else min(topics, len(waiting))
        now, left = min(LOOK_AGAIN, left), left - LOOK_AGAIN
        for owner in list(itertools.islice(waiting, now)):
            del waiting[owner]
            topic = cast(OwnedTopic, owner)
            self._pass_room_on(topic)
            if topic.waiting or topic.thirsty:
                waiting[owner] = None  # behind the others
        if left > 0 and receiver.wanted > 0 and self._accepting:
            asyncio.get_running_loop().call_soon(self.wanted, receiver, left)
        self._wake()

    def settled(self, group: OwnedGroup, message: Message) -> None:
        """The store knows what becomes of a message that was not a success; it no longer counts as in flight."""
        if message.offset >= 0:
            self._finish(group, message)
        self._leave_flight(group, message)

    def refused(self, group: OwnedGroup, message: Message) -> None:
        """The store refused to take a failed message: it counts as in flight no more, and stays unfinished."""
        self._leave_flight(group, message)

    def acknowledged(self, group: OwnedGroup, n: int) -> None:
        """The store knows that `n` messages of the group's slot or lane are done; their keys were let go of before."""
        owner = group.owner
        owner.in_flight -= n
        group.in_flight -= n
        self.in_flight -= n
        if not owner.in_flight:
            self._weigh(group, 0)
        self._pass_room_on(owner)
        if self.in_flight <= self._crowd.wakes_at:
            self._admit()
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
        self._enter_flight(group, (message,))
        self._outcomes.expired(group, message)

    def damaged(self, group: OwnedGroup, message: Message, reason: str) -> None:
        """Dead-letter what could not be decoded; its payload is the stored record."""
        self._enter_flight(group, (message,))
        self._outcomes.damaged(group, message, reason)

    async def stop(self) -> None:
        """Start nothing more. Messages in flight go on; see `cancel`."""
        self._accepting = False
        for timer in (self._timer, self._looking):
            if timer is not None:
                timer.cancel()

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
        while self._rotation and now < stint_ends and self._accepting:
            group = self._visited = self._rotation.popleft()
            owner = group.owner
            room = owner.room()
            if group.stopping or not group.buffered or owner.handler is None or group.busy:
                group.listed = False
                if owner.handler is None and not group.stopping:
                    self._has_rest(group)
                self._pass_room_on(owner)
                continue
            if room > 0:
                room = self._places(owner, room, now)
            if room <= 0:
                if self._has_rest(group, room=True):
                    owner.waiting.append(group)
                    owner.note_waiting()
                continue
            self._granted = group.counter.reserve(min(VISIT, group.buffered, room), now)
            if not self._granted:
                if self._has_rest(group):
                    self._park(group, group.counter.next_at(now), now)
                self._pass_room_on(owner)
                continue
            visit = self._visit_batches if owner.batch_size > 1 else self._visit
            try:
                still_driving = await visit(group, driver, now)
            except Exception as bug:  # no handler's failure comes here
                still_driving = self._driver is driver
                self._broke(group, bug)
                if not still_driving:
                    self._no_longer_busy(group)
            if not still_driving:
                return
            self._end_visit(group)
            now = self._clock.now()
        self._driver = None
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
        while self._granted and now_us < valid_until_us:
            message = group.take(now_us)
            if message is None:
                break
            if 0 < message.expires_us <= now_us:
                self._expire_taken(group, message)
                continue
            self._granted -= 1
            message.started_us = now_us
            self._running = message
            self.started += 1
            if trail is not None:
                trail.started(message, group.epoch)
            try:
                await handler(message)
            except BaseException as failure:  # of any kind: it must not leave the group busy
                if _is_closed(failure):
                    raise
                if self._driver is driver:
                    self._enter_flight(group, (message,))
                if self._is_cancelled(failure):
                    self._leave_flight(group, message)
                    raise
                self.failed += 1
                self._outcomes.failed(group, message, failure)
            else:
                self.succeeded += 1
                if trail is not None:
                    trail.settled(message, clock_now_us())
                if self._driver is not driver:
                    self._succeeded(group, message)
                else:  # the handler did not suspend: of nobody's places did it take one
                    if message.key is not None:
                        group.finish_key(message.key)
                    if message.offset >= 0:  # `_finish`, without the call: this runs for each message
                        queue = group.queues[message.priority]
                        queue.tracker.finish(message.offset)
                        if not queue.dirty:
                            queue.dirty = True
                            self._on_dirty(queue)
                    else:
                        self._count(group, 1)
                        self._acknowledge(group, message)
            if self._driver is not driver:
                owner.pace.ended(message.started_us, clock_now_us())
                self._no_longer_busy(group)
                return False
            now_us = clock_now_us()
        return True

    async def _visit_batches(self, group: OwnedGroup, driver: object, now: float) -> bool:
        """As `_visit`, for a handler that takes lists."""
        owner = group.owner
        handler = cast(BatchHandler, owner.handler)
        valid_until = min(group.counter.valid_until(now), self._lease.until)
        self._running = None
        while self._granted and now < valid_until:
            size = 1 if group.serial else owner.batch_size  # those of one call run at the same time
            batch = self._take_batch(group, size, int(now * 1e6))
            if not batch:
                break
            owner.pace.began(batch[0].started_us, len(batch))
            try:
                await handler(batch)
            except BaseException as failure:
                if _is_closed(failure):
                    raise
                owner.pace.ended(batch[0].started_us, self._clock.now_us(), len(batch))
                if self._is_cancelled(failure):
                    for message in batch:
                        self._leave_flight(group, message)
                    raise
                self._batch_failed(group, batch, failure)
            else:
                owner.pace.ended(batch[0].started_us, self._clock.now_us(), len(batch))
                for message in batch:
                    self._note_success(message)
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
            if (message := self._running) is not None:
                self._enter_flight(group, (message,))
                group.owner.pace.began(message.started_us)
            if group.busy:
                self._has_rest(group)
            self._end_visit(group)
            self._wake()

    def _no_longer_busy(self, group: OwnedGroup) -> None:
        if group.busy:
            group.busy = False
            if group.buffered:
                self.ready(group)
            self._on_drained(group)

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
        if (owner.waiting or owner.thirsty) and owner.room() > 0:
            if owner.waiting:
                self._rotation.append(owner.waiting.popleft())
            if owner.thirsty:
                self._claims.has_room(owner)

    def _has_rest(self, group: OwnedGroup, room: bool = False) -> bool:
        """Give up what the group holds of its slot, which cannot start now; True if it holds anything else."""
        if group.slot is not None:
            self._claims.stuck(group, room)
            group.listed = group.listed and group.buffered > 0
        return group.buffered > 0

    def _places(self, owner: OwnedTopic, wanted: int, now: float) -> int:
        """How many of the `wanted` places in flight the topic may take; without one it waits for some to be free."""
        held, used = owner.in_flight, self.in_flight
        room = wanted
        if used * 4 > self._max_in_flight:  # below that, nobody's share is below what there is
            full_at = sharing.ceiling(self._max_in_flight, owner.pace.hold_s(int(now * 1e6)))
            wanted = min(wanted, sharing.need(owner.topic.qps, owner.pace.took_s) - held)
            room = sharing.room(full_at, used, held)
            if wanted > 0 >= room:
                self._crowd.wait(owner, sharing.used_at_most(full_at, held))
                if self._looking is None:
                    self._looking = asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self._look_again)
                return 0
        return min(room, wanted)  # one that has all it needs waits for its own messages to end

    def _admit(self) -> None:
        """Look again at the topics that have enough free places now."""
        room = self._max_in_flight - self.in_flight
        while room > 0 and self.in_flight <= self._crowd.wakes_at:
            self._pass_room_on(self._crowd.first())
            room -= 1

    def _look_again(self) -> None:
        self._looking = None
        for _ in range(min(LOOK_AGAIN, len(self._crowd))):
            self._pass_room_on(self._crowd.longest())
        if self._accepting and self._crowd:
            self._looking = asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self._look_again)
        self._wake()

    # ------------------------------------------------------------------------------------------- parking and settling

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (bug := task.exception()) is not None:
            log.error("a stint of the dispatcher broke; it goes on with the next group", exc_info=bug)
            self._driver = None
            self._wake()

    def _broke(self, group: OwnedGroup, bug: Exception) -> None:
        """Something besides a handler broke in a visit: what is in flight of the group may never be settled."""
        if self.on_broken is None:
            raise bug
        self.on_broken("dispatch", group, bug)

    def _park(self, group: OwnedGroup, until: float, now: float) -> None:
        """Leave a group that was granted nothing `now` until then."""
        if until == float("inf"):
            group.listed = False
            return
        until = math.ceil(until / GRID_S) * GRID_S
        if until <= now:
            until += GRID_S  # the counter's next time, rounded, is this one, in which it has granted nothing
        parked = self._parked.get(until)
        if parked is None:
            parked = self._parked[until] = {}
            heapq.heappush(self._deadlines, until)
            if self._deadlines[0] == until:
                self._set_timer()
        parked[group] = None
        group.parked_until = until

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay = min(max(0.0, self._deadlines[0] - self._clock.now()), LONGEST_TIMER_S)
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
        self._enter_flight(group, batch)
        self.started += len(batch)
        return batch

    def _batch_failed(self, group: OwnedGroup, batch: list[Message], failure: BaseException) -> None:
        failures = retry.of_batch(failure, [m.id for m in batch])
        for message in batch:
            if (reason := failures.get(message.id)) is not None:
                self.failed += 1
                self._outcomes.failed(group, message, reason)
            else:
                self._note_success(message)
                self._succeeded(group, message)

    def _note_success(self, message: Message) -> None:
        self.succeeded += 1
        if self._trail.enabled:
            self._trail.settled(message, self._clock.now_us())

    def _succeeded(self, group: OwnedGroup, message: Message) -> None:
        """A message that is in flight has succeeded."""
        if message.offset >= 0:
            self._finish(group, message)
            self._leave_flight(group, message)
            return
        if message.key is not None:
            # Its handler is done: the next of its key need not wait for the store to hear of it.
            group.finish_key(message.key)
            if group.buffered:
                self.ready(group)
        self._weigh(group, -len(message.payload))
        self._acknowledge(group, message)

    def _acknowledge(self, group: OwnedGroup, message: Message) -> None:
        """It counts as in flight, but for its bytes, until the store knows; see `acknowledged`."""
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

    def _enter_flight(self, group: OwnedGroup, messages: Sequence[Message]) -> None:
        self._count(group, len(messages))
        for message in messages:
            self._weigh(group, len(message.payload))

    def _count(self, group: OwnedGroup, n: int) -> None:
        group.owner.in_flight += n
        group.in_flight += n
        self.in_flight += n

    def _weigh(self, group: OwnedGroup, size: int) -> None:
        owner = group.owner
        owner.flying += size
        group.gauge.flying += size
        if not owner.in_flight:  # a handler may have changed the payload that it was given
            group.gauge.flying -= owner.flying
            owner.flying = 0

    def _leave_flight(self, group: OwnedGroup, message: Message) -> None:
        owner = group.owner
        owner.in_flight -= 1
        group.in_flight -= 1
        self.in_flight -= 1
        self._weigh(group, -len(message.payload))
        if message.key is not None and message.started_us:
            group.finish_key(message.key)
            if group.buffered:
                self.ready(group)
        self._pass_room_on(owner)
        if self.in_flight <= self._crowd.wakes_at:
            self._admit()
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


def _is_closed(failure: BaseException) -> bool:
    """True if the stint's coroutine is being closed, as when the event loop has ended: then nothing may be awaited.

    A handler that raises GeneratorExit itself does so inside the running task.
    """
    if not isinstance(failure, GeneratorExit):
        return False
    try:
        return asyncio.current_task() is None
    except RuntimeError:
        return True
