"""The main loop: starts messages, group by group, under each group's counter."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import cast

from emq.dispatch import retry
from emq.dispatch.endings import Endings
from emq.dispatch.flight import MAX_IN_FLIGHT
from emq.dispatch.handler_tasks import HandlerTasks, is_closed
from emq.dispatch.outcomes import Outcomes
from emq.dispatch.rotation import Rotation
from emq.dispatch.volley import MOST, Volley, suits
from emq.groups import reading_ahead
from emq.groups.context import HostContext
from emq.groups.deliveries import QUICK_US
from emq.groups.owned import BatchHandler, Claims, Handler, OwnedGroup, OwnedTopic
from emq.message import Message

VISIT = 64
"""Most messages started in one visit to a group, before the rotation goes on to the next."""

STINT_S = 0.002
"""Seconds that a stint starts messages before the event loop serves the network again."""


class Dispatcher(Rotation):
    """Visits the groups that have buffered messages and quota, in rotation.

    The loop is `_stint`. It runs as a task that takes the next group of the rotation, reserves a few starts from the
    group's counter, and awaits the handler of one message after the other. A handler that never suspends costs a
    function call. A handler that suspends also suspends its stint, and a new stint takes over the rotation
    (`_hand_over`). The suspended stint settles its message when the handler returns, and ends. So only a handler that
    waits costs a task, and `asyncio.timeout` and cancellation work as usual. If most handlers of a topic wait, its
    messages start in volleys (`_fire`): a task for each message, without hand-overs.

    The rotation is fair: a visit ends after `VISIT` messages, a stint after `STINT_S`, so a group waits for at most one
    visit to each of the others. An idle group costs nothing.
    """

    def __init__(
        self,
        outcomes: Outcomes,
        context: HostContext,
        max_in_flight: int = MAX_IN_FLIGHT,
        claims: Claims | None = None,
    ) -> None:
        """Args:
        claims: claims from the slots of sorted topics; None without such slots.
        """
        super().__init__(context, max_in_flight, claims)
        self._outcomes = outcomes
        self._trail = context.trail
        self._lease = context.lease
        self._lease.on_renewed.append(self._wake)
        self.endings = Endings(outcomes, context, self)
        self.tasks = HandlerTasks()
        self._visited: OwnedGroup | None = None
        self._granted = 0
        self._granted_at = 0.0
        self._running: Message | None = None  # with the visit's handler; in flight only once it suspends
        self._started_before = 0  # messages started before the visit
        self._volleys: list[Volley] = []  # of this stint
        self._beginning: list[Volley] = []  # those whose tasks take their first steps now
        self.started = 0

    def unsettled(self, group: OwnedGroup) -> int:
        """Return the number of the group's messages that were started and not settled.

        This includes the message whose handler has just suspended; `in_flight` counts this message only after
        `_hand_over`.
        """
        return group.in_flight + (self._driver is not None and self._visited is group)

    def revoke(self, owner: OwnedTopic) -> None:
        """Give back the starts that the topic's groups have been granted and have not used.

        A handler that does not wait calls this (`emq.host.throttles`) in the middle of its group's visit or volley.
        """
        group = self._visited
        if self._driver is not None and group is not None and group.owner is owner:
            self._release_granted(group)
        for volley in (*self._volleys, *self._beginning):
            if volley.group.owner is owner:
                volley.until_us = 0

    async def stop(self) -> None:
        """Start nothing more. Messages in flight go on; see `HandlerTasks.cancel`."""
        self._accepting = False
        self.parking.stop()
        self.flight.stop()

    # ----------------------------------------------------------------------------------------------------- main loop

    def _wake(self) -> None:
        if self._driver is None and self._accepting and self._rotation and self._clock.now() < self._lease.until:
            self._driver = driver = object()
            try:
                self.tasks.begin(self._stint(driver)).add_done_callback(partial(self._ended, driver))
            except BaseException:  # else no stint would ever begin again
                self._driver = None
                raise

    async def _stint(self, driver: object) -> None:
        asyncio.get_running_loop().call_soon(self._hand_over, driver)
        now = self._clock.now()
        stint_ends = min(now + STINT_S, self._lease.until)
        in_volleys = 0
        while self._rotation and now < stint_ends and self._accepting and in_volleys < MOST:
            group = self._visited = self._rotation.popleft()
            owner = group.owner
            try:
                room = owner.room()
                if group.stopping or not group.buffered or owner.handler is None or group.busy:
                    group.listed = False
                    if owner.handler is None and not group.stopping:
                        self._has_rest(group)
                    self._pass_room_on(owner)
                    continue
                if room > 0:
                    room = self.flight.places(owner, room, now)
                if room <= 0:
                    if self._has_rest(group, room=True):
                        owner.waiting.append(group)
                        owner.note_waiting()
                    continue
                near = group.ahead + group.capacity > group.allowance  # as `reading_ahead.is_near`, without the call
                ready = reading_ahead.startable(group, now) if near or len(owner.groups) > 1 else group.buffered
                self._granted, self._granted_at = group.counter.reserve(min(VISIT, ready, room), now), now
                if not self._granted:
                    if self._has_rest(group):
                        until = group.counter.next_at(now) if ready else now + reading_ahead.wait_s(group)
                        self._park(group, until, now)
                    self._pass_room_on(owner)
                    now = self._clock.now()  # thousands of groups of one topic may find its counter used up
                    continue
                if suits(group):
                    in_volleys += self._granted
                    self._fire(group, now)
                    continue
                visit = self._visit_batches if owner.batch_size > 1 else self._visit
                still_driving = await visit(group, driver, now)
            except Exception as bug:  # a bug of EMQ: the visit deals with failures of handlers
                still_driving = self._driver is driver
                self._events.broken("dispatch", group, bug)
                if not still_driving:
                    self._no_longer_busy(group)
            if not still_driving:
                return
            self._end_visit(group)
            now = self._clock.now()
        self._driver = None
        self._follow_volleys()
        asyncio.get_running_loop().call_soon(self._wake)

    async def _visit(self, group: OwnedGroup, driver: object, now: float) -> bool:
        """Start messages of one group while the grant lasts; return False if another stint has the rotation now."""
        owner = group.owner
        self._started_before = self.started
        handler, endings = cast(Handler, owner.handler), self.endings
        clock_now_us = self._clock.now_us
        trail = self._trail if self._trail.enabled else None
        counts = owner.deliveries
        # The lease may end during the visit, also because the process was stopped while the clock went on.
        valid_until = min(group.counter.valid_until(now), self._lease.until)
        now_us, valid_until_us = int(now * 1e6), int(valid_until * 1e6)
        if counts is not None:
            counts.open(self.started, now_us)
        while self._granted and now_us < valid_until_us:
            message = group.take(now_us)
            if message is None:
                break
            if 0 < message.expires_us <= now_us:
                endings.expire_taken(group, message)
                continue
            self._granted -= 1
            message.started_us = began_us = now_us
            self._running = message
            if counts is not None and (message.ready_us != counts.ready_us or now_us >= counts.until_us):
                counts.turn(self.started, message.ready_us, now_us)
            self.started += 1
            if trail is not None:
                trail.started(message, group.epoch)
            try:
                await handler(message)
            except BaseException as failure:  # no failure of any kind may leave the group busy
                if is_closed(failure):
                    raise
                if self._driver is driver:
                    self.flight.enter(group, 1, message.size)
                if self.tasks.are_cancelled(failure):
                    endings.leave(group, message)
                    raise
                endings.fail(group, message, failure)
            else:
                if self._driver is not driver:
                    endings.succeed(group, message, clock_now_us())
                else:  # the handler did not suspend, so the message took no place in flight
                    endings.succeeded += 1
                    if trail is not None:
                        trail.settled(message, clock_now_us())
                    if message.key is not None:
                        group.finish_key(message.key)
                    if message.offset >= 0:  # as `Endings.settled`, without the call: this runs for each message
                        queue = group.queues[message.priority]
                        queue.tracker.finish(message.offset)
                        if not queue.dirty:
                            queue.mark_dirty()
                            self._events.dirty(queue)
                    else:
                        self._outcomes.acknowledge(group, message)
                        self.flight.enter(group, 1, 0)
            now_us = clock_now_us()
            if self._driver is not driver:
                owner.pace.ended(message.started_us, now_us)
                if counts is not None:
                    counts.ended(now_us - began_us)
                self._no_longer_busy(group)
                return False
            if counts is not None and now_us - began_us >= QUICK_US:
                counts.slow(self.started, began_us, now_us)
        if self.started != self._started_before:
            owner.pace.passed(self.started - self._started_before)
        return True

    async def _visit_batches(self, group: OwnedGroup, driver: object, now: float) -> bool:
        """Do the same as `_visit` for a handler that takes lists."""
        owner = group.owner
        handler = cast(BatchHandler, owner.handler)
        valid_until = min(group.counter.valid_until(now), self._lease.until)
        self._running = None
        while self._granted and now < valid_until:
            size = 1 if group.serial else owner.batch_size  # those of one call run at the same time
            batch = self._take_batch(group, min(size, self._granted), int(now * 1e6))
            if not batch:
                break
            self._granted -= len(batch)
            owner.pace.began(batch[0].started_us, len(batch))
            try:
                await handler([*batch])  # the handler may change its list
            except BaseException as failure:
                if is_closed(failure):
                    raise
                if self.tasks.are_cancelled(failure):
                    for message in batch:
                        self.endings.leave(group, message)
                    raise
                self.endings.end_batch(group, batch, retry.of_batch(failure, batch))
            else:
                self.endings.end_batch(group, batch, {})
            if self._driver is not driver:
                self._no_longer_busy(group)
                return False
            now = self._clock.now()
        return True

    def _fire(self, group: OwnedGroup, now: float) -> None:
        """Use the grant for a volley; the group goes on with the rotation once all its tasks have begun."""
        size, self._granted = self._granted, 0
        until = min(group.counter.valid_until(now), self._lease.until)
        volley = Volley(group, size, now, int(until * 1e6))
        self._volleys.append(volley)
        self.flight.enter(group, size, 0)
        for _ in range(size):
            self.tasks.begin(self._single(volley))

    async def _single(self, volley: Volley) -> None:
        """Take one message and start it, in a task of its own."""
        group = volley.group
        try:
            now_us = self._clock.now_us()
            if not self._accepting or not volley.may_start(now_us):
                return
            message = group.take(now_us)
            while message is not None and 0 < message.expires_us <= now_us:
                self.endings.expire_taken(group, message)
                message = group.take(now_us)
            if message is None:
                return
            message.started_us = now_us
            if self._trail.enabled:
                self._trail.started(message, group.epoch)
            volley.begin(message, now_us)  # from here on, only the handler may raise: the message must leave flight
            self.started += 1
            self.flight.enter(group, 0, message.size)
            try:
                await volley.handler(message)
            except BaseException as failure:  # of any kind
                if is_closed(failure):
                    raise
                volley.end(message, self._clock.now_us())
                if self.tasks.are_cancelled(failure):
                    self.endings.leave(group, message)
                    raise
                self.endings.fail(group, message, failure)
            else:
                volley.end(message, now_us := self._clock.now_us())
                self.endings.succeed(group, message, now_us)
        except Exception as bug:  # a bug of EMQ: failures of handlers are dealt with above
            self._events.broken("dispatch", group, bug)
        finally:
            self.tasks.running.discard(asyncio.current_task())

    def _take_batch(self, group: OwnedGroup, most: int, now_us: int) -> list[Message]:
        """Take up to `most` messages of the group, in flight from now on, for one call of its handler."""
        batch: list[Message] = []
        size, counts, trail = 0, group.owner.deliveries, self._trail
        while len(batch) < most and (message := group.take(now_us)) is not None:
            if 0 < message.expires_us <= now_us:
                self.endings.expire_taken(group, message)
                continue
            message.started_us = now_us
            batch.append(message)
            size += message.size
            if counts is not None:
                counts.began(message.ready_us, now_us)
            if trail.enabled:
                trail.started(message, group.epoch)
        self.flight.enter(group, len(batch), size)
        self.started += len(batch)
        return batch

    def _follow_volleys(self) -> None:
        """Have `_begun` run after the first steps of the tasks of the stint's volleys."""
        if self._volleys:
            volleys, self._volleys = self._volleys, []
            self._beginning += volleys
            asyncio.get_running_loop().call_soon(self._begun, volleys)

    def _begun(self, volleys: list[Volley]) -> None:
        """All tasks of the volleys have taken their first steps: give back the starts that found no message."""
        for volley in volleys:
            try:
                self._beginning.remove(volley)
                volley.all_begun()
                if volley.left:
                    self.flight.leave(volley.group, volley.left, 0)
                    self._release(volley.group, volley.left, volley.at)
                self._go_on(volley.group)
            except Exception as bug:  # no loop would tell of it
                self._events.broken("dispatch", volley.group, bug)
        self._wake()

    def _hand_over(self, driver: object) -> None:
        """Run right after a stint's first step: if the stint still drives then, a handler has suspended it."""
        if self._driver is not driver:
            return
        self._driver = None
        group = self._visited
        assert group is not None
        try:
            group.busy = group.serial
            if (message := self._running) is not None:
                self.flight.enter(group, 1, message.size)
                group.owner.pace.began(message.started_us)
                group.owner.note_waits(1 / (self.started - self._started_before))
            self._follow_volleys()
            if group.busy:
                self._has_rest(group)
            self._end_visit(group)
        except Exception as bug:  # no loop would tell of it
            self._events.broken("dispatch", group, bug)
        self._wake()

    def _end_visit(self, group: OwnedGroup) -> None:
        owner, has_waited = group.owner, self._driver is None  # its handler has suspended the stint
        try:
            if not has_waited and owner.waits:
                owner.note_waits(0.0)
            if owner.deliveries is not None:
                running = self._running if has_waited else None
                at_us = self._clock.now_us() if running is None else running.started_us
                owner.deliveries.close(self.started, at_us, running=running is not None)
            self._go_on(group)
        except Exception as bug:  # the rotation goes on with the next group, and the starts are given back
            self._events.broken("dispatch", group, bug)
        self._release_granted(group)

    def _release_granted(self, group: OwnedGroup) -> None:
        if granted := self._granted:
            self._granted = 0
            self._release(group, granted, self._granted_at)

    def _release(self, group: OwnedGroup, starts: int, at: float) -> None:
        """Give back unused starts of a group's grant of time `at`; its topic's parked groups may use them."""
        group.counter.release(starts, at)
        self.parking.bring_back(group.owner, starts)

    # -------------------------------------------------------------------------------------- the end of stints and calls

    def _ended(self, driver: object, task: asyncio.Task[None]) -> None:
        self.tasks.running.discard(task)
        if not task.cancelled() and isinstance(bug := task.exception(), Exception):
            if self._driver is driver:  # else another stint has the rotation
                self._driver = None
                self._follow_volleys()
            if (group := self._visited) is not None:
                self._events.broken("dispatch", group, bug)
            self._wake()
