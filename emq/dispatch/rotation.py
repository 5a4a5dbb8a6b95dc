"""The rotation: the groups that have messages to start, in turn."""

from __future__ import annotations

import abc
import asyncio
import itertools
from collections import deque
from collections.abc import Iterable
from typing import cast

from emq.dispatch.flight import Flight
from emq.dispatch.parking import Parking
from emq.dispatch.stint import Stint
from emq.groups.claims import Claims
from emq.groups.context import HostContext
from emq.groups.owned import OwnedGroup, OwnedTopic
from emq.groups.receiver import Receiver

MANY = 300
"""Groups in the rotation beyond which the host reads nothing more: messages read now would start no sooner, and fill
memory and the processor's caches meanwhile."""

LOOK_S = 0.002
LOOKS = 25
"""Most looks at the rotation, `LOOK_S` seconds apart, for which reading waits until it is shorter."""

LOOK_AGAIN = 64
"""Topics that the dispatcher looks at in one step when their receiver wants more messages."""


class Rotation(abc.ABC):
    """Knows whose turn it is. The dispatcher adds the stints, which take one group after the other; `Endings` tells of
    messages that leave flight.

    States of a group: *idle* (nothing to start), *in rotation*, *parked* (its counter allows more only later, see
    `Parking`), *waiting* (its topic has no room in flight). `ready` takes a group from idle into the rotation; the
    stint moves the group on; the timer and settled messages bring the group back.

    All topics share the places for messages in flight (`Flight`). A topic that finds no place waits until enough places
    are free.

    Attributes:
        accepting: False once nothing more may start.
    """

    def __init__(self, context: HostContext, max_in_flight: int, claims: Claims | None) -> None:
        self._clock = context.clock
        self._events = context.events
        self._claims = claims or Claims()
        self.flight = Flight(max_in_flight, self._look_at)
        self.parking = Parking(context.clock, self._bring_back)
        self._rotation: deque[OwnedGroup] = deque()
        self._driver: Stint | None = None  # it goes through the rotation now
        self.accepting = True

    @abc.abstractmethod
    def wake(self) -> None:
        """Begin a stint, unless one is running or there is nothing to do."""

    async def has_few(self) -> None:
        """Return once at most `MANY` groups wait for their turn, or after `LOOKS` looks."""
        for _ in range(LOOKS):
            if len(self._rotation) <= MANY:
                break
            await asyncio.sleep(LOOK_S)

    def ready(self, group: OwnedGroup) -> None:
        """The group has something to start: put it into the rotation, unless it is listed already."""
        if not group.listed and not group.stopping:
            group.listed = True
            self._rotation.append(group)
            self.wake()

    def recheck(self, group: OwnedGroup) -> None:
        """The group's quota or its topic's limits changed: look at the group now, even if it is parked."""
        if self.parking.take_out(group):
            group.listed = False
        # Waiting groups get room in flight one after the other, while there is room.
        self._pass_room_on(group.owner)
        self.wake()
        if group.buffered:
            self.ready(group)

    def wanted(self, receiver: Receiver, topics: int | None = None) -> None:
        """The receiver wants more messages: start the waiting ones, some topics at a time, each topic once."""
        waiting = receiver.unasked
        left = len(waiting) if topics is None else min(topics, len(waiting))
        now, left = min(LOOK_AGAIN, left), left - LOOK_AGAIN
        for owner in list(itertools.islice(waiting, now)):
            del waiting[owner]
            topic = cast(OwnedTopic, owner)
            self._pass_room_on(topic)
            if topic.waiting or topic.thirsty:
                waiting[owner] = None  # goes behind the others
        if left > 0 and receiver.wanted > 0 and self.accepting:
            asyncio.get_running_loop().call_soon(self.wanted, receiver, left)
        self.wake()

    def left(self, group: OwnedGroup, n: int, size: int) -> None:
        """`n` messages of the group leave flight: use their places for this topic, and for the others that wait.

        Args:
            size: their bytes, as in `Flight.leave`.
        """
        flight, owner = self.flight, group.owner
        flight.leave(group, n, size)
        try:
            if owner.in_flight <= owner.limit < owner.in_flight + n:  # nothing was read while more was in flight
                for each in owner.groups.values():
                    self._events.drained(each)
            if owner.waiting or owner.thirsty:
                self._pass_room_on(owner)
            if flight.crowd.wakes_at >= 0:  # else no topic waits
                flight.admit()
            if self._driver is None:
                self.wake()
        except Exception as bug:  # the places are free; the caller goes on with its other messages
            self._events.broken("dispatch", group, bug)

    # ------------------------------------------------------------------------------------ a group's turns

    def _no_longer_busy(self, group: OwnedGroup) -> None:
        if group.busy:
            group.busy = False
            if group.buffered:
                self.ready(group)
            self._events.drained(group)

    def go_on(self, group: OwnedGroup) -> None:
        """Put a group back into the rotation if it has more to start."""
        self._events.drained(group)
        if group.buffered and not group.stopping and not group.busy:
            self._rotation.append(group)
        else:
            group.listed = False
        self._pass_room_on(group.owner)

    def release(self, group: OwnedGroup, starts: int, at: float) -> None:
        """Give back unused starts of a group's grant of time `at`; its topic's parked groups may use them."""
        group.counter.release(starts, at)
        self.parking.bring_back(group.owner, starts)

    def _pass_room_on(self, owner: OwnedTopic) -> None:
        """Give the room in flight that is left to the topic's next group that waits for room."""
        if (owner.waiting or owner.thirsty) and owner.room() > 0:
            if owner.waiting:
                self._rotation.append(owner.waiting.popleft())
            if owner.thirsty:
                self._claims.has_room(owner)

    def _has_rest(self, group: OwnedGroup, room: bool = False) -> bool:
        """Give back the buffered members of the group's slot, which cannot start; return True if messages remain."""
        if group.slot is not None:
            self._claims.stuck(group, room)
            group.listed = group.listed and group.buffered > 0
        return group.buffered > 0

    def _look_at(self, owner: OwnedTopic) -> None:
        """Look at a topic that may find a place in flight now."""
        try:
            self._pass_room_on(owner)
            self.wake()
        except Exception as bug:  # nobody would look at the topic again
            for group in owner.groups.values():
                self._events.broken("dispatch", group, bug)

    def _park(self, group: OwnedGroup, until: float, now: float) -> None:
        """Park a group whose counter granted nothing at `now` until `until`."""
        if until == float("inf"):
            group.listed = False
            return
        self.parking.park(group, until, now)

    def _bring_back(self, groups: Iterable[OwnedGroup]) -> None:
        """Put parked groups back into the rotation, because their counters allow more."""
        self._rotation.extend(groups)
        self.wake()
