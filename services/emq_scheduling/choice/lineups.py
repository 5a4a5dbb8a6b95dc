"""The queues of all levels, and when their resources are looked at again."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Container, Iterable

from emq_scheduling.choice.order import Gate, Lineup, Size, rough
from emq_scheduling.choice.seats import Seat, Seats, Sleep
from emq_scheduling.choice.shares import Shares
from emq_scheduling.choice.waiting import Waiting
from emq_scheduling.choice.window import Level
from emq_scheduling.limits.accounts import Accounts
from emq_scheduling.model import Costs, Pool

LONG_S = 1.0
"""A resource that sleeps for longer looks now and then."""

LOOKS = 500
"""Most of these that look at a time."""


class Lineups:
    """Where the resources of a pool wait at each level.

    A resource without room for its next task *sleeps*: behind a gate, if the limits of a parent lack or keep the room,
    else on its own.
    """

    def __init__(self, seats: Seats, shares: Shares, accounts: Accounts) -> None:
        self._seats = seats
        self._shares = shares
        self._accounts = accounts
        self._levels: dict[int, Lineup] = {}
        self._timers: list[tuple[float, int, Seat | Gate]] = []
        self._numbers = itertools.count()
        self._closed: set[str] = set()
        self._paused: set[str] = set()
        self._looked = 0

    def follow(self, before: Pool, pool: Pool, seats: Iterable[Seat], changed: Iterable[str]) -> None:
        """Take over a changed pool.

        Args:
            seats: resources that must be put into queues again.
            changed: names of resources that are new, different or gone.
        """
        changed = list(changed)
        if any(_is_paused(before, name) != _is_paused(pool, name) for name in changed):
            seats = list(self._seats.values())
        self._closed &= self._seats.keys()
        self._paused &= self._seats.keys()
        for seat in seats:
            is_paused = any(_is_paused(pool, each) for each in (seat.name, *self._seats.parents[seat.name]))
            (self._paused.add if is_paused else self._paused.discard)(seat.name)
            self._place(seat)
        for node in changed:
            self.open(node)

    def _place(self, seat: Seat) -> None:
        """Put a resource into the queues again, if it is open."""
        seat.leave()
        seat.is_open = seat.name not in self._paused and seat.name not in self._closed
        for lineup in self._levels.values() if seat.is_open else ():
            lineup.awake.put(seat)

    def of(self, number: int, level: Level) -> Lineup:
        """Return the resources of a level in their queues; at first they all wait for tasks."""
        lineup = self._levels.get(number)
        if lineup is None:
            lineup = self._levels[number] = Lineup(number, level)
            for seat in self._seats.values():
                if seat.is_open:
                    lineup.awake.put(seat)
        return lineup

    def rouse(self, seat: Seat, until: float = math.inf) -> None:
        """Look at a resource again that sleeps on its own, at all levels at which it would look by that time."""
        for number in [n for n, sleep in seat.asleep.items() if sleep.looks_at <= until and n not in seat.spots]:
            del seat.asleep[number]
            if seat.is_open:
                self._levels[number].awake.put(seat)

    def open(self, node: str) -> None:
        """Look at the resources again that wait for room below a parent."""
        for lineup in self._levels.values():
            lineup.open(node)

    def look(self) -> None:
        """Find the order of all resources again."""
        for lineup in self._levels.values():
            lineup.look(list(lineup.where))

    def look_again(self, now: float) -> None:
        """Let resources look again that sleep long: call this about once a second.

        The task for which a resource fell asleep may have started elsewhere since, and smaller ones may have come. Of
        very many resources, some look each time, in turn.
        """
        long = (name for name, seat in self._seats.items() if any(s.until > now + LONG_S for s in seat.asleep.values()))
        found = list(long)
        self._looked = self._looked % len(found) if found else 0
        for name in (found[self._looked :] + found[: self._looked])[:LOOKS]:
            self.rouse(self._seats[name])
        self._looked += LOOKS
        for lineup in self._levels.values():
            for gate in [gate for gates in lineup.gates.values() for gate in gates.values()]:
                if gate.sleeps_at(now + LONG_S):
                    gate.open()
                for seat in gate.seats(LOOKS) if not gate.is_shut and gate.first() is None else ():
                    lineup.awake.put(seat)
                if not gate:
                    lineup.drop(gate)

    def freed(self, resource: str, is_refund: bool) -> None:
        """A charge on the resource has ended, so that resources may have room again.

        Args:
            is_refund: it was given back units that it had not used; else only what was in flight.
        """
        if resource not in self._seats:  # it was taken away, and shared limits with nobody knows whom
            for seat in self._seats.values():
                self.rouse(seat)
            for lineup in self._levels.values():
                for node in lineup.gates:
                    lineup.open(node)
            return
        for node in (resource, *self._seats.parents[resource]):
            # Health may limit what runs on it and below it, also without a limit in flight.
            is_held = node in self._seats.in_flight or self._accounts.account(node).gate is not None
            if node == resource or is_refund or is_held:
                if (taker := self._seats.get(node)) is not None:  # a parent may take tasks itself
                    self.rouse(taker)
                self.open(node)

    def close(self, resource: str, until: float) -> None:
        """Start nothing on the resource before that time; a time in the past opens it."""
        seat = self._seats.get(resource)
        if seat is None:
            return
        seat.closed_until = until
        self._shares.closed(seat)
        self._closed.add(resource)
        seat.leave()
        self._wake_at(seat, until)

    def closed_until(self, resource: str) -> float:
        """Return the time before which the resource starts nothing; infinity while it is paused."""
        if resource in self._paused:
            return math.inf
        seat = self._seats.get(resource)
        return 0.0 if seat is None else seat.closed_until

    def left(self, gone: Container[Waiting]) -> None:
        """Look again where room was waited for, or claimed, for tasks that are not there any more."""
        for seat in self._seats.values():
            if any(sleep.head in gone for sleep in seat.asleep.values()):
                self.rouse(seat)
                for node in self._seats.parents[seat.name]:
                    self.open(node)

    def goes_to_a_gate(self, seat: Seat, lineup: Lineup, costs: Costs, standing: float) -> bool:
        """Put a resource behind a gate above it that is shut for such a task; return False if there is none."""
        for node in self._seats.parents[seat.name] if lineup.gates else ():
            gates = lineup.gates.get(node)
            if gates and (gate := gates.get(self._size(node, costs, standing))) is not None and gate.is_shut:
                gate.put(seat)
                return True
        return False

    def sleep(self, seat: Seat, lineup: Lineup, sleep: Sleep, node: str | None, standing: float) -> None:
        """Let a resource sleep.

        Args:
            node: where room is lacking, kept or claimed; None if nobody knows.
            standing: of its next task.
        """
        if node is None or node == seat.name:
            seat.spots[lineup.number][0].remove(seat)
            self._wake_at(seat, sleep.looks_at)
            return
        gate = lineup.gate(node, self._size(node, sleep.costs, standing))
        if seat.spots[lineup.number][0] is not gate:
            gate.put(seat)
        gate.shut(sleep.looks_at, sleep.costs)
        sleep.gate = (gate, gate.opened)
        self._wake_gate(gate)

    def next_at(self) -> float:
        """Return when to call `wake` next; infinity for never."""
        timers = self._timers
        while timers and isinstance(gate := timers[0][2], Gate) and not gate.is_shut:
            gate.timers.discard(heapq.heappop(timers)[0])
        return timers[0][0] if timers else math.inf

    def wake(self, now: float) -> None:
        """Look again at the resources for which it is time."""
        while self._timers and self._timers[0][0] <= now:
            at, _, of = heapq.heappop(self._timers)
            of.timers.discard(at)
            if isinstance(of, Gate):
                if of.is_shut and not of.sleeps_at(now):
                    of.open()
                self._wake_gate(of)
                continue
            if self._seats.get(of.name) is not of:
                continue
            if of.name in self._closed and of.closed_until <= now:
                self._reopen(of)
            self.rouse(of, now)

    def _reopen(self, seat: Seat) -> None:
        self._closed.discard(seat.name)
        # It has not been chosen for a while, and neither it nor its tenants need make up for it.
        seat.turn = max(seat.turn, *(other.turn for other in self._seats.values()))
        self._shares.opened(seat, self._accounts.relatives(seat.name))
        self._place(seat)

    def _wake_gate(self, gate: Gate) -> None:
        """Look again at a gate when it is time; an earlier look finds that out."""
        at = gate.until
        if gate.is_shut and at < min(gate.timers, default=math.inf):
            gate.timers.add(at)
            heapq.heappush(self._timers, (at, next(self._numbers), gate))

    def _wake_at(self, seat: Seat, at: float) -> None:
        """Look at a resource again at this time; infinity for never."""
        if at < math.inf and at not in seat.timers:
            seat.timers.add(at)
            heapq.heappush(self._timers, (at, next(self._numbers), seat))

    def _size(self, node: str, costs: Costs, standing: float) -> Size:
        """Return what tasks have in common that are held back by the limits of a parent together."""
        return standing, *(rough(costs[name]) for name in self._seats.limits[node])


def _is_paused(pool: Pool, name: str) -> bool:
    return name in pool.resources and pool.resources[name].paused
