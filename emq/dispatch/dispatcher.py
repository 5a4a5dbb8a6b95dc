"""The main loop: starts messages, group by group, under each group's counter."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import cast

from emq.dispatch import retry, volley
from emq.dispatch.endings import Endings, note_ended
from emq.dispatch.flight import MAX_IN_FLIGHT
from emq.dispatch.handler_tasks import HandlerTasks
from emq.dispatch.outcomes import Outcomes
from emq.dispatch.rotation import Rotation
from emq.dispatch.starts import Starts
from emq.dispatch.stint import Stint
from emq.groups import reading_ahead
from emq.groups.claims import Claims
from emq.groups.context import HostContext
from emq.groups.deliveries import QUICK_US
from emq.groups.owned import BatchHandler, Handler, OwnedGroup, OwnedTopic
from emq.storage.message import Message

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
    messages start in volleys (`emq.dispatch.volley`): a task for each message, without hand-overs.

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
        self._lease.on_renewed.append(self.wake)
        self.tasks = HandlerTasks()
        self.endings = Endings(outcomes, context, self, self.tasks)
        self._starts = Starts(context, self.endings)
        self.volleys = volley.Volleys(context, self, self._starts, self.endings, self.tasks)

    @property
    def started(self) -> int:
        """Messages started."""
        return self._starts.started

    def unsettled(self, group: OwnedGroup) -> int:
        """Return the number of the group's messages that were started and not settled.

        This includes the message whose handler has just suspended; `in_flight` counts this message only after
        `_hand_over`.
        """
        return group.in_flight + (self._driver is not None and self._driver.group is group)

    def revoke(self, owner: OwnedTopic) -> None:
        """Give back the starts that the topic's groups have been granted and have not used.

        A handler that does not wait calls this (`emq.host.throttles`) in the middle of its group's visit or volley.
        """
        stint = self._driver
        if stint is not None and stint.group is not None and stint.group.owner is owner:
            self._release_granted(stint, stint.group)
        self.volleys.revoke(owner)

    async def stop(self) -> None:
        """Start nothing more. Messages in flight go on; see `HandlerTasks.cancel`."""
        self.accepting = False
        self.parking.stop()
        self.flight.stop()

    # ----------------------------------------------------------------------------------------------------- main loop

    def wake(self) -> None:
        if self._driver is None and self.accepting and self._rotation and self._clock.now() < self._lease.until:
            self._driver = stint = Stint()
            try:
                self.tasks.begin(self._stint(stint)).add_done_callback(partial(self._ended, stint))
            except BaseException:  # else no stint would ever begin again
                self._driver = None
                raise

    async def _stint(self, stint: Stint) -> None:
        asyncio.get_running_loop().call_soon(self._hand_over, stint)
        now = self._clock.now()
        stint_ends = min(now + STINT_S, self._lease.until)
        in_volleys = 0
        while self._rotation and now < stint_ends and self.accepting and in_volleys < volley.MOST:
            group = stint.group = self._rotation.popleft()
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
                        owner.wait_for_room(group)
                    continue
                near = group.ahead + group.capacity > group.allowance  # as `reading_ahead.is_near`, without the call
                ready = reading_ahead.startable(group, now) if near or len(owner.groups) > 1 else group.buffered
                stint.granted, stint.granted_at = group.counter.reserve(min(VISIT, ready, room), now), now
                if not stint.granted:
                    if self._has_rest(group):
                        until = group.counter.next_at(now) if ready else now + reading_ahead.wait_s(group)
                        self._park(group, until, now)
                    self._pass_room_on(owner)
                    now = self._clock.now()  # thousands of groups of one topic may find its counter used up
                    continue
                if volley.suits(group):
                    granted, stint.granted = stint.granted, 0
                    in_volleys += granted
                    self.volleys.fire(group, granted, now)
                    continue
                visit = self._visit_batches if owner.batch_size > 1 else self._visit
                still_driving = await visit(group, stint, now)
            except Exception as bug:  # a bug of EMQ: the visit deals with failures of handlers
                still_driving = self._driver is stint
                self._events.broken("dispatch", group, bug)
                if not still_driving:
                    self._no_longer_busy(group)
            if not still_driving:
                return
            self._end_visit(group, stint)
            now = self._clock.now()
        self._driver = None
        self.volleys.follow()
        asyncio.get_running_loop().call_soon(self.wake)

    async def _visit(self, group: OwnedGroup, stint: Stint, now: float) -> bool:
        """Start messages of one group while the grant lasts; return False if another stint has the rotation now.

        This runs for each message, so it has the lines of `Starts.take` and `Endings.succeed`, without their calls.
        Messages that follow each other in their queue are finished together, as a run (`Endings.finish_run`).
        """
        owner, starts, endings = group.owner, self._starts, self.endings
        stint.started_before = starts.started
        handler = cast(Handler, owner.handler)
        clock_now_us = self._clock.now_us
        trail = self._trail if self._trail.enabled else None
        counts = owner.deliveries if owner.deliveries.enabled else None
        now_us, until_us = int(now * 1e6), int(starts.until(group, now) * 1e6)
        if counts is not None:
            counts.open(starts.started, now_us)
        priority = upto = -1  # the run goes to the offset `upto` of the queue of this priority
        taken = stint.taken
        try:
            while stint.granted and now_us < until_us:
                if taken:
                    message = taken.pop()
                else:
                    first = group.take(now_us)
                    if first is None:
                        break
                    message = first
                    if 0 < message.expires_us <= now_us:
                        endings.expire_taken(group, message)
                        continue
                    if message.offset != upto or message.priority != priority:
                        endings.finish_run(group, stint, upto)
                        priority, upto = message.priority, message.offset
                        stint.begin_run(priority, upto)
                    if (
                        upto >= 0
                        and message.key is None
                        and not (message.expires_us or message.started_us or owner.waits)
                    ):
                        group.take_run(message, stint.granted - 1, taken)
                stint.granted -= 1
                message.started_us = began_us = now_us
                stint.running = message
                if counts is not None and (message.ready_us != counts.ready_us or now_us >= counts.until_us):
                    counts.turn(starts.started, message.ready_us, now_us)
                starts.started += 1
                if trail is not None:
                    trail.started(message, group.epoch)
                try:
                    await handler(message)
                except BaseException as failure:  # no failure of any kind may leave the group busy
                    if self._driver is stint:
                        if upto >= 0:  # the run ends before this message, and the next one begins behind it
                            endings.finish_run(group, stint, upto)
                            upto += 1
                            stint.begin_run(priority, upto)
                        self.flight.enter(group, 1, message.size)
                    if endings.breaks_off(group, (message,), failure):
                        raise
                    endings.fail(group, message, failure)
                else:
                    if self._driver is not stint:
                        endings.succeed(group, (message,), clock_now_us())
                    else:  # the handler did not suspend, so the message took no place in flight
                        if trail is not None:
                            trail.settled(message, clock_now_us())
                        if message.key is not None:
                            group.finish_key(message.key)
                        if upto >= 0:
                            upto += 1
                        else:
                            endings.acknowledge(group, message)
                now_us = clock_now_us()
                if self._driver is not stint:
                    note_ended(owner, message.started_us, now_us)
                    self._no_longer_busy(group)
                    return False
                if counts is not None and now_us - began_us >= QUICK_US:
                    counts.slow(starts.started, began_us, now_us)
        finally:
            if self._driver is stint:
                stint.return_taken()
                endings.finish_run(group, stint, upto)
        if starts.started != stint.started_before:
            owner.pace.passed(starts.started - stint.started_before)
        return True

    async def _visit_batches(self, group: OwnedGroup, stint: Stint, now: float) -> bool:
        """Do the same as `_visit` for a handler that takes lists."""
        owner = group.owner
        handler = cast(BatchHandler, owner.handler)
        until = self._starts.until(group, now)
        stint.running = None
        while stint.granted and now < until:
            most = min(1 if group.serial else owner.batch_size, stint.granted)  # those of a call run at the same time
            batch = self._take_batch(group, most, int(now * 1e6))
            if not batch:
                break
            stint.granted -= len(batch)
            owner.pace.began(batch[0].started_us, len(batch))
            try:
                await handler([*batch])  # the handler may change its list
            except BaseException as failure:
                if self.endings.breaks_off(group, batch, failure):
                    raise
                self.endings.end_batch(group, batch, retry.of_batch(failure, batch))
            else:
                self.endings.end_batch(group, batch, {})
            if self._driver is not stint:
                self._no_longer_busy(group)
                return False
            now = self._clock.now()
        return True

    def _take_batch(self, group: OwnedGroup, most: int, now_us: int) -> list[Message]:
        """Take up to `most` messages of the group, in flight from now on, for one call of its handler."""
        batch: list[Message] = []
        size, take = 0, self._starts.take
        for _ in range(most):
            message = take(group, now_us)
            if message is None:
                break
            batch.append(message)
            size += message.size
        self.flight.enter(group, len(batch), size)
        return batch

    def _hand_over(self, stint: Stint) -> None:
        """Run right after a stint's first step: if the stint still drives then, a handler has suspended it."""
        if self._driver is not stint:
            return
        self._driver = None
        group = stint.group
        assert group is not None
        try:
            stint.return_taken()
            group.busy = group.serial
            if (message := stint.running) is not None:
                self.endings.finish_run(group, stint, message.offset)
                self.flight.enter(group, 1, message.size)
                started = self.started - stint.started_before
                if started > 1:
                    group.owner.pace.passed(started - 1)
                group.owner.pace.began(message.started_us)
                group.owner.note_waits(1 / started)
            self.volleys.follow()
            if group.busy:
                self._has_rest(group)
            self._end_visit(group, stint)
        except Exception as bug:  # no loop would tell of it
            self._events.broken("dispatch", group, bug)
        self.wake()

    def _end_visit(self, group: OwnedGroup, stint: Stint) -> None:
        owner, has_waited = group.owner, self._driver is None  # its handler has suspended the stint
        try:
            if not has_waited and owner.waits:
                owner.note_waits(0.0)
            if owner.deliveries.enabled:
                running = stint.running if has_waited else None
                at_us = self._clock.now_us() if running is None else running.started_us
                owner.deliveries.close(self.started, at_us, running=running is not None)
            self.go_on(group)
        except Exception as bug:  # the rotation goes on with the next group, and the starts are given back
            self._events.broken("dispatch", group, bug)
        self._release_granted(stint, group)

    def _release_granted(self, stint: Stint, group: OwnedGroup) -> None:
        if granted := stint.granted:
            stint.granted = 0
            self.release(group, granted, stint.granted_at)

    def _ended(self, stint: Stint, task: asyncio.Task[None]) -> None:
        self.tasks.running.discard(task)
        if not task.cancelled() and isinstance(bug := task.exception(), Exception):
            if self._driver is stint:  # else another stint has the rotation
                self._driver = None
                self.volleys.follow()
            if stint.group is not None:
                self._events.broken("dispatch", stint.group, bug)
            self.wake()
