"""The policy of which task starts on which resource, without clock and I/O.

`run` goes through the priorities, the most urgent first, over all resources that may have room. So a less urgent task
never takes room that a more urgent one could use, not even that of a shared parent. Within a priority, each resource
takes the next task among its types (`emq_scheduling.choice.window`), in the order of `emq_scheduling.choice.order`.

- **Asleep.** A resource without room for the next task of a priority sleeps until the limits allow that task, or until
  a running task ends. So with a backlog a new task costs nothing but its place in the window.
- **Few choices.** A task that finds many resources idle looks at `CHOICES` of them, drawn at random.
- **Gaps.** A next task that does not fit claims room (`emq_scheduling.choice.claims`). A smaller one may start in its
  place if that delays no next task (`emq_scheduling.choice.gaps`).
- **Kept room.** A task leaves room to more urgent ones that probably come soon (`emq_scheduling.choice.keeping`).
- **Shares.** Each start on a resource credits its types that have a share and wait; a type with a credit of one start
  goes before the more urgent ones.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterable
from typing import NamedTuple

from emq_scheduling.choice.claims import Claims
from emq_scheduling.choice.costing import Costing
from emq_scheduling.choice.gaps import GAP_TRIES, Gaps, is_smaller
from emq_scheduling.choice.keeping import Keeping
from emq_scheduling.choice.order import Queue
from emq_scheduling.choice.seats import Seat, home_of, sharing_in_flight
from emq_scheduling.choice.shares import Shares, Spent
from emq_scheduling.choice.spreads import released_at
from emq_scheduling.choice.waiting import Waiting
from emq_scheduling.choice.window import Level, Window, near_level, size_of
from emq_scheduling.limits.accounts import Charge
from emq_scheduling.model import Costs, Pool, TaskType

CHOICES = 16
"""Resources that a task looks at if more are idle. Two random choices are nearly as good as all (Mitzenmacher 2001);
sixteen find the cheaper ones, too."""

LOOK_S = 0.1
"""Seconds after which a resource without room for the next task looks again, if smaller tasks wait or its room is only
kept: that task may have started elsewhere, and another one may fit."""

LONG_S = 1.0
"""A resource that sleeps for longer looks now and then."""

LEAST_S = 0.001
"""Least seconds for which a resource without room sleeps."""

GAPS = 4
"""Number of resources, asleep until a larger task has room, that a new smaller task looks at."""

PATIENCE_S = 1.0
"""Seconds for which a task keeps to the resource of its key while that has no room."""

MOST_CREDIT = 2.0
"""Most starts that a type with a share may save up on a resource."""


class Start(NamedTuple):
    """A task that starts now on a resource."""

    waiting: Waiting
    resource: str
    charge: Charge
    costs: Costs


class Matching:
    """The waiting tasks and the resources of one pool. Times are seconds since the epoch.

    Attributes:
        window: the waiting tasks.
        costing: what they cost.
    """

    def __init__(self, pool: Pool, keeping: Keeping, random_: random.Random | None = None) -> None:
        self._keeping = keeping
        self._accounts = keeping.accounts
        self._random = random_ or random.Random()
        self._seats: dict[str, Seat] = {}
        self._fresh: dict[tuple[int, str], list[Costs | None]] = {}  # with the own costs of some of these tasks
        self._left: set[int] = set()  # levels of which tasks were taken out
        self._woken: dict[str, None] = {}
        self._timers: list[tuple[float, str]] = []
        self._closed: set[str] = set()
        self._patient: list[tuple[float, int, Waiting]] = []
        self._count = self._looked = 0
        self._pool = pool
        self._shares = Shares(pool, self._seats, 1.0)
        self.window = Window(self._shares)
        self.costing = Costing(pool)
        self.follow(pool)

    def follow(self, pool: Pool) -> None:
        """Follow a change of the pool; `Accounts.follow` comes first."""
        before = {name: self._shares.weight(name) for name in {**self._pool.tenants, **pool.tenants}}
        self._pool = pool
        self._able = {kind: pool.able(kind) for kind in pool.types}
        self.costing = Costing(pool, self.costing.estimates)
        self._parts = {name: kind.share for name, kind in pool.types.items() if kind.share}
        takers = {name: resource for name, resource in pool.resources.items() if resource.takes}
        self._seats = {name: self._seats.get(name) or Seat(name) for name in takers}
        for seat, resource in zip(self._seats.values(), takers.values(), strict=True):
            seat.types, seat.price, seat.weight = frozenset(resource.takes), resource.price, resource.weight
            seat.asleep.clear()
            seat.credits = {kind: seat.credits.get(kind, 0.0) for kind in resource.takes if kind in self._parts}
        reached = min((seat.turn for seat in self._seats.values() if seat.turn), default=0.0)
        for seat in self._seats.values():
            seat.turn = max(seat.turn, reached)
        self._claims = Claims(pool, self._keeping, self._seats, self.window)
        self._gaps = Gaps(self._keeping, self._claims, self.costing, self.window)
        self._closed = {name for name in self._closed if name in self._seats}
        self._paused = {name for name in takers if any(each.paused for each in pool.chain(name))}
        for name, seat in self._seats.items():
            seat.is_open = name not in self._paused and name not in self._closed
        self._shares.follow(pool, self._seats, self.costing.per_s)
        if grown := {name: now / was for name, was in before.items() if (now := self._shares.weight(name)) != was}:
            self.window.reweigh(grown)
        self._woken = dict.fromkeys(self._seats)
        self._freed_by = sharing_in_flight(pool)
        self._relevel()

    def _relevel(self) -> None:
        """Let the waiting tasks compete at the priorities that their types have now."""
        for waiting in self.window.all():
            if (kind := self._pool.types.get(waiting.task.type)) is None:
                continue
            waiting.near_level = near_level(kind)
            level = min(kind.priority, waiting.near_level) if waiting.is_near else kind.priority
            if level != waiting.level:
                self.window.move(waiting, level)

    # -------------------------------------------------------------------------------------------------- what happens

    def add(self, waiting: Waiting, now: float) -> None:
        """Add a task; `run` starts it when there is room. Its type must be one of the pool's."""
        kind = self._kind(waiting)
        waiting.level = kind.priority
        waiting.size = None if waiting.costs is None else size_of(waiting.costs, kind)
        if waiting.task.keep and waiting.task.key is not None:
            waiting.keeps_to = self._of_key(waiting.task.type, waiting.task.key, now)
            if waiting.keeps_to is not None:
                self._count += 1
                heapq.heappush(self._patient, (now + PATIENCE_S, self._count, waiting))
        self.window.add(waiting, near_level(kind), kind.duration_s)
        self._freshen(waiting)

    def remove(self, waiting: Waiting) -> None:
        """Take a waiting task out, which then does not start; nothing happens if it has started."""
        if not waiting.is_gone:
            self.window.take(waiting)
            self._left.add(waiting.level)

    def look_again(self, now: float) -> None:
        """Wake the resources that sleep long: call this about once a second.

        The task for which a resource fell asleep may have started elsewhere since, and smaller ones may have come.
        """
        for name, seat in self._seats.items():
            for number in [number for number, sleep in seat.asleep.items() if sleep.until > now + LONG_S]:
                del seat.asleep[number]
                self._woken[name] = None

    def freed(self, resource: str, is_refund: bool) -> None:
        """A charge on the resource has ended, so that resources may have room again.

        Args:
            is_refund: it was given back units that it had not used; else only what was in flight.
        """
        holders: Iterable[str] = (resource, *self._freed_by.get(resource, ()))  # its health may limit what it runs
        if resource not in self._seats:  # it was taken away, and shared limits with nobody knows whom
            holders = self._seats
        elif is_refund:
            holders = self._accounts.relatives(resource)
        for name in holders:
            if (seat := self._seats.get(name)) is not None and seat.asleep:
                seat.asleep.clear()
                self._woken[name] = None

    def close(self, resource: str, until: float) -> None:
        """Start nothing on the resource before that time; a time in the past opens it."""
        seat = self._seats.get(resource)
        if seat is None:
            return
        seat.closed_until = until
        self._shares.closed(seat)
        self._closed.add(resource)
        seat.asleep.clear()
        self._woken[resource] = None
        self._wake_at(seat, until)

    def closed_until(self, resource: str) -> float:
        """Return the time before which the resource starts nothing; infinity while it is paused."""
        if resource in self._paused:
            return math.inf
        seat = self._seats.get(resource)
        return 0.0 if seat is None else seat.closed_until

    # ---------------------------------------------------------------------------------------------------- the matching

    def run(self, now: float, most: int = 64) -> list[Start]:
        """Start tasks wherever there is room, `most` at most.

        If it returns `most` starts, there may be more to start at once: call it again.
        """
        self._wake(now)
        starts: list[Start] = []
        for number, level in self.window.levels():
            if not self._match(number, level, now, starts, most):
                return starts
        self._fresh.clear()
        self._left.clear()
        self._woken.clear()
        return starts

    def next_at(self, now: float) -> float:
        """Return when to call `run` again if nothing happens meanwhile; infinity for never."""
        if not self.window.count:
            return math.inf
        times = [self._timers[0][0]] if self._timers else []
        times += [self._patient[0][0]] if self._patient else []
        raise_at = self.window.next_raise()
        times += [raise_at] if raise_at is not None else []
        return max(now, min(times, default=math.inf))

    def _wake_at(self, seat: Seat, at: float) -> None:
        """Look at a resource again at this time; infinity for never."""
        if at < math.inf and at not in seat.timers:
            seat.timers.add(at)
            heapq.heappush(self._timers, (at, seat.name))

    def _freshen(self, waiting: Waiting) -> None:
        """Let `run` find resources for a task that is new in its level."""
        some = self._fresh.setdefault((waiting.level, waiting.task.type), [])
        if len(some) < GAP_TRIES and waiting.costs not in some:
            some.append(waiting.costs)

    def _wake(self, now: float) -> None:
        while self._timers and self._timers[0][0] <= now:
            at, name = heapq.heappop(self._timers)
            if (seat := self._seats.get(name)) is not None:
                seat.timers.discard(at)
                if name in self._closed and seat.closed_until <= now:
                    self._closed.discard(name)
                    seat.is_open = name not in self._paused
                    # It has not been chosen for a while, and neither it nor its tenants need make up for it.
                    seat.turn = max(seat.turn, *(other.turn for other in self._seats.values()))
                    self._shares.opened(seat, self._accounts.relatives(name))
                for number in [n for n, sleep in seat.asleep.items() if sleep.looks_at <= now]:
                    del seat.asleep[number]
                self._woken[name] = None
        for waiting in self.window.raised(now):
            self._freshen(waiting)
        while self._patient and (self._patient[0][2].is_gone or self._patient[0][0] <= now):
            waiting = heapq.heappop(self._patient)[2]
            if not waiting.is_gone:
                self.window.release(waiting)
                self._freshen(waiting)

    def _match(self, number: int, level: Level, now: float, starts: list[Start], most: int) -> bool:
        """Start tasks of a level; return False if `most` starts were reached before the end."""
        queue = Queue(level)
        queue.add([*self._candidates(number, level, now), *self._sleepers(number, now)])
        while len(starts) < most:
            found = queue.next()
            if found is None:  # tasks that arrived may find room on idle resources that were not drawn
                queue.add(self._candidates(number, level, now))
                if (found := queue.next()) is None:
                    return True
            seat, head = found
            start = self._next_start(seat, number, level, head, now)
            if start is None:
                queue.drop(seat)
                continue
            starts.append(start)
            seat.turn += 1.0 / seat.weight
            queue.started(seat)
        return False

    def _candidates(self, number: int, level: Level, now: float) -> list[Seat]:
        """Return the resources to look at for a level: those woken, and for new tasks some that are awake."""
        found = {name: None for name in self._woken if self._is_awake(name, number, now)}
        for of_level, kind in self._fresh:
            if of_level != number:
                continue
            awake = [name for name in self._able.get(kind, []) if self._is_awake(name, number, now)]
            if len(awake) > CHOICES and (kind, None) in level.lines:
                awake = self._random.sample(awake, CHOICES)
            found.update(dict.fromkeys(awake))
        return [self._seats[name] for name in found]

    def _sleepers(self, number: int, now: float) -> list[Seat]:
        """Return the sleeping resources on which a new or next task of the level may have room."""
        found: dict[str, None] = {}
        for (of_level, kind), some in self._fresh.items():
            if of_level == number:
                found.update(dict.fromkeys(self._with_gaps(kind, some, number, now)))
        if self._left and min(self._left) <= number:  # some may sleep because of a task that is not there any more
            asleep = [name for name, seat in self._seats.items() if number in seat.asleep and self._is_open(name, now)]
            found.update(dict.fromkeys(name for name in asleep if self._has_room(self._seats[name], number, now)))
        return [self._seats[name] for name in found]

    def _with_gaps(self, kind: str, some: list[Costs | None], number: int, now: float) -> list[str]:
        """Return resources without room for a larger task that have room for a new one of the type; not all if many."""
        able = self._able.get(kind, [])
        found = []
        self._looked += GAPS  # in turn, each time others
        for place in range(self._looked, self._looked + min(GAPS, len(able))):
            name = able[place % len(able)]
            asleep = self._seats[name].asleep.get(number)
            if asleep is None or not self._is_open(name, now):
                continue
            usual = self.costing.of_type(kind, name)
            for own in some:
                costs = usual if own is None else {limit: own.get(limit, units) for limit, units in usual.items()}
                if is_smaller(costs, asleep.costs) and self._keeping.fits(name, costs, now, number):
                    found.append(name)
                    break
        return found

    def _has_room(self, seat: Seat, number: int, now: float) -> bool:
        """Return whether the next task of a level has room on the resource."""
        level = self.window.level(number)
        head = None if level is None else level.next_for(seat.types, seat.name)
        return head is not None and self._keeping.fits(
            seat.name, self.costing.of(head, seat.name), now, self.window.standing(head)
        )

    def _is_open(self, name: str, now: float) -> bool:
        return self._seats[name].closed_until <= now and name not in self._paused

    def _is_awake(self, name: str, number: int, now: float) -> bool:
        return number not in self._seats[name].asleep and self._is_open(name, now)

    def _next_start(self, seat: Seat, number: int, level: Level, head: Waiting | None, now: float) -> Start | None:
        """Start the next task of the level on the resource; None if there is none, or none that fits."""
        if seat.credits and (owed := self._owed(seat, now)) is not None:
            return owed
        if head is None:
            return None
        costs = self.costing.of(head, seat.name)
        standing = self.window.standing(head)
        until: float | None
        if self._keeping.fits(seat.name, costs, now, standing):
            until = self._claims.delayed_until(seat, head, costs, now)
            if until is None:
                return self._start(seat, head, costs, now)
        else:
            until = self._keeping.next_at(seat.name, costs, now, standing)
        sleep = self._claims.make(seat, number, head, costs, max(until, now + LEAST_S), now)
        smaller, are_there = (None, False) if sleep.kept else self._gaps.smaller(seat, level, sleep, now)
        if smaller is not None:
            del seat.asleep[number]
            return self._start(seat, smaller, self.costing.of(smaller, seat.name), now, head)
        if are_there or not sleep.is_steady:
            sleep.looks_at = min(sleep.until, now + LOOK_S, released_at(now))
        self._wake_at(seat, sleep.looks_at)
        return None

    def _owed(self, seat: Seat, now: float) -> Start | None:
        """Start a task of a type whose share is due."""
        for kind, credit in seat.credits.items():
            if credit < 1.0:
                continue
            number = self._pool.types[kind].priority
            level = self.window.level(number)
            head = None if level is None else level.next_for({kind}, None)
            if head is None:
                continue
            costs = self.costing.of(head, seat.name)
            if self._accounts.fits(seat.name, costs, now):
                seat.credits[kind] = credit - 1.0
                return self._start(seat, head, costs, now)
        return None

    def _start(self, seat: Seat, waiting: Waiting, costs: Costs, now: float, head: Waiting | None = None) -> Start:
        """Start a task on the resource; `head`: the next task, if this one goes before it in a gap."""
        ends_at = now + self._kind(waiting).duration_s
        charge = self._keeping.charge(seat.name, costs, now, waiting.level, ends_at)
        level = self.window.level(waiting.level)
        assert level is not None, "it waits there"
        turn = min(level.turn(each.task.tenant) for each in (waiting, head or waiting))
        reached = self._shares.reach(seat, waiting.level, turn)
        self.window.take(waiting, Spent(self.costing.units(waiting, seat.name, costs), reached))
        for name in seat.credits:
            if name in self.window.sums:
                seat.credits[name] = min(MOST_CREDIT, seat.credits[name] + self._parts[name])
        return Start(waiting, seat.name, charge, costs)

    # -------------------------------------------------------------------------------------------------- small answers

    def _kind(self, waiting: Waiting) -> TaskType:
        return self._pool.types[waiting.task.type]

    def _of_key(self, kind: str, key: str, now: float) -> str | None:
        """Return the resource of a key, among those that are open."""
        return home_of(key, (name for name in self._able[kind] if self._is_open(name, now)))
