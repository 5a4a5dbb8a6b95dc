"""The policy of which task starts on which resource, without clock and I/O.

`run` goes through the priorities, the most urgent first, over all resources that may have room. So a less urgent task
never takes room that a more urgent one could use, not even that of a shared parent. Within a priority, each resource
takes the next task among its types (`emq_scheduling.choice.window`), in the order of `emq_scheduling.choice.order`.

- **Asleep.** A resource without room for the next task of a priority sleeps until the limits allow that task, or until
  a running task ends. If the limits of a parent have no room, all resources below it sleep behind one gate
  (`emq_scheduling.choice.order`). So a start costs the same with many resources below a full limit as with few, and a
  new task of a backlog costs nothing but its place in the window.
- **Limits by key.** A next task that such a limit has no room for waits in the bay of its key
  (`emq_scheduling.choice.bays`), and the task behind it is next.
- **Gaps.** A next task that does not fit claims room (`emq_scheduling.choice.claims`). A smaller one may start in its
  place if that delays no next task (`emq_scheduling.choice.gaps`).
- **Kept room.** A task leaves room to more urgent ones that probably come soon (`emq_scheduling.choice.keeping`).
- **Shares.** Each start on a resource credits its types that have a share and wait; a type with a credit of one start
  goes before the more urgent ones.
"""

from __future__ import annotations

import heapq
import math
from typing import NamedTuple

from emq_scheduling.choice.bays import Bays
from emq_scheduling.choice.claims import Claims
from emq_scheduling.choice.costing import Costing
from emq_scheduling.choice.gaps import GAP_TRIES, Gaps, is_smaller
from emq_scheduling.choice.keeping import Keeping, Lacking
from emq_scheduling.choice.lineups import Lineups
from emq_scheduling.choice.order import Gate, Lineup
from emq_scheduling.choice.seats import Seat, Seats, home_of
from emq_scheduling.choice.shares import Shares, Spent
from emq_scheduling.choice.spreads import released_at
from emq_scheduling.choice.waiting import Waiting
from emq_scheduling.choice.window import Window, near_level, size_of
from emq_scheduling.limits.accounts import Charge
from emq_scheduling.model import Costs, Pool, TaskType

LOOK_S = 0.1
"""Seconds after which a resource without room for the next task looks again, if smaller tasks wait or its room is only
kept: that task may have started elsewhere, and another one may fit."""

LEAST_S = 0.001
"""Seconds for which a resource sleeps that seems to have room at once, by a rounded sum."""

GAPS = 4
"""Number of resources, asleep until a larger task has room, that a new smaller task looks at."""

PATIENCE_S = 1.0
"""Seconds for which a task keeps to the resource of its key while that has no room."""

MOST_CREDIT = 2.0
"""Most starts that a type with a share may save up on a resource."""


_Line = tuple[str, str | None]
"""The type of tasks, and the resource to which they keep."""


class _Fresh:
    """New tasks of a line.

    Attributes:
        costs: the own costs of some of them.
        is_next: whether one is the next of its type; else nothing is new to resources that have tasks of the type.
        is_quiet: whether one is of a tenant without a backlog.
    """

    __slots__ = ("costs", "is_next", "is_quiet")

    def __init__(self) -> None:
        self.costs: list[Costs | None] = []
        self.is_next = self.is_quiet = False


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
        lineups: where the resources wait.
        bays: where tasks wait for room under limits by key.
    """

    def __init__(self, pool: Pool, keeping: Keeping) -> None:
        self._keeping = keeping
        self._accounts = keeping.accounts
        self._seats = Seats()
        self._fresh: dict[int, dict[_Line, _Fresh]] = {}  # by level
        self._left: dict[Waiting, None] = {}  # tasks that were taken out
        self._eager: set[str] = set()  # resources that have room for a smaller task than their next one
        self._parts: dict[str, float] = {}
        self._patient: list[tuple[float, int, Waiting]] = []
        self._count = self._looked = 0
        self._pool = Pool(pool.name)
        self._shares = Shares(pool, self._seats, 1.0)
        self.lineups = Lineups(self._seats, self._shares, self._accounts)
        self.window = Window(self._shares)
        self.bays = Bays(self._accounts.keyed, self.window)
        self.costing = Costing(pool)
        self._claims = Claims(pool, keeping, self._seats, self.window)
        self._gaps = Gaps(keeping, self._claims, self.costing, self.window, self.bays)
        self.follow(pool)

    def follow(self, pool: Pool) -> None:
        """Follow a change of the pool; `Accounts.follow` comes first. The cost grows with what has changed."""
        before, self._pool = self._pool, pool
        changed = self._accounts.changed
        concerned = {*changed, *self._accounts.moved}
        if before.types != pool.types:
            concerned = {*concerned, *pool.resources}
            self._parts = {name: kind.share for name, kind in pool.types.items() if kind.share}
        if concerned:
            self.costing.follow(pool, changed)
        seats = self._seats.follow(pool, concerned)
        for seat in seats:
            seat.credits = {kind: seat.credits.get(kind, 0.0) for kind in seat.types if kind in self._parts}
        self._eager &= self._seats.keys()
        self._claims.follow(pool)
        self._shares.follow(pool, self.costing.per_s)
        if concerned:
            self._shares.forget()
        if before.types != pool.types:
            self._relevel()  # before the resources find their next tasks
        self.lineups.follow(before, pool, seats, changed)
        if before.tenants != pool.tenants:
            self._reweigh(before)
        if before.limits != pool.limits or before.types != pool.types:
            self.bays.returned += self.bays.follow()

    def _reweigh(self, before: Pool) -> None:
        """Let changed weights of tenants count at once."""
        names = {**before.tenants, **self._pool.tenants}
        pairs = {name: (before.weight(name), self._pool.weight(name)) for name in names}
        if grown := {name: now / was for name, (was, now) in pairs.items() if now != was}:
            self.window.reweigh(grown)
            self.lineups.look()

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
        if waiting.task.tries is not None and (only := waiting.task.tries.resource) is not None:
            waiting.keeps_to = only
        elif waiting.task.keep and waiting.task.key is not None:
            waiting.keeps_to = self._of_key(waiting.task.type, waiting.task.key)
            if waiting.keeps_to is not None:
                self._count += 1
                heapq.heappush(self._patient, (now + PATIENCE_S, self._count, waiting))
        self.window.add(waiting, near_level(kind), kind.duration_s)
        waiting.ids = self._accounts.keyed.ids(waiting.task)
        if not (waiting.ids and self.bays.joins(waiting, kind.costs, now)):
            self._freshen(waiting)

    def remove(self, waiting: Waiting) -> None:
        """Take a waiting task out, which then does not start; nothing happens if it has started."""
        if not waiting.is_gone:
            self.window.take(waiting)
            self._left[waiting] = None

    def freed(self, charge: Charge, now: float, *, is_refund: bool) -> None:
        """A charge has ended, so that tasks may have room again; `is_refund` as for `Lineups.freed`."""
        self.lineups.freed(charge.resource, is_refund)
        for account in charge.keyed:
            self.bays.look(account.id, now)

    def able(self, kind: str) -> list[str]:
        """Return the names of the resources that take a type."""
        return self._seats.able(kind)

    def look_again(self, now: float) -> None:
        """Look again where nothing happened for long: call this about once a second."""
        self.lineups.look_again(now)
        self.bays.look_again(now)

    # ---------------------------------------------------------------------------------------------------- the matching

    def run(self, now: float, most: int = 64) -> list[Start]:
        """Start tasks wherever there is room, `most` at most.

        If it returns `most` starts, there may be more to start at once: call it again.
        """
        self._wake(now)
        starts: list[Start] = []
        while self._run(starts, now, most):
            pass
        if len(starts) < most:
            self._fresh.clear()  # the rest is of levels without tasks
        return starts

    def _run(self, starts: list[Start], now: float, most: int) -> bool:
        """Go through the levels; return True to go through them again, since tasks came back to former ones."""
        for number, level in self.window.levels():
            lineup = self.lineups.of(number, level)
            self._mix_in(lineup, now)
            while len(starts) < most and (found := lineup.next()) is not None:
                seat, head = found
                start = self._next_start(seat, lineup, head, now)
                if start is not None:
                    starts.append(start)
                    seat.turn += 1.0 / seat.weight
                if self.bays.returned and self._take_back() <= number:
                    return True
            if len(starts) >= most:
                return False
        return False

    def next_at(self, now: float) -> float:
        """Return when to call `run` again if nothing happens meanwhile; infinity for never."""
        if not self.window.count:
            return math.inf
        if self.bays.returned:
            return now
        times = [self.lineups.next_at()]
        times += [self.bays.next_at()] if self.bays else []
        times += [self._patient[0][0]] if self._patient else []
        raise_at = self.window.next_raise()
        times += [raise_at] if raise_at is not None else []
        return max(now, min(times, default=math.inf))

    def _freshen(self, waiting: Waiting) -> None:
        """Let `run` find resources for a task that is new in its level."""
        fresh = self._fresh.setdefault(waiting.level, {}).setdefault((waiting.task.type, waiting.keeps_to), _Fresh())
        if len(fresh.costs) < GAP_TRIES and waiting.costs not in fresh.costs:
            fresh.costs.append(waiting.costs)
        level = self.window.level(waiting.level)
        assert level is not None, "it waits there"
        fresh.is_next = fresh.is_next or level.next_for({waiting.task.type}, waiting.keeps_to) is waiting
        fresh.is_quiet = fresh.is_quiet or self.window.standing(waiting) == waiting.level

    def _wake(self, now: float) -> None:
        self.lineups.wake(now)
        for waiting in self.window.raised(now):
            self._freshen(waiting)
        while self._patient and (self._patient[0][2].is_gone or self._patient[0][0] <= now):
            waiting = heapq.heappop(self._patient)[2]
            if not waiting.is_gone:
                self.window.release(waiting)
                self._freshen(waiting)
        if self._left:
            self.lineups.left(self._left)
            for at in [at for waiting in self._left for at in waiting.ids]:
                self.bays.look(at, now)
            self._left.clear()
        if self.bays:
            self.bays.wake(now)
        if self.bays.returned:
            self._take_back()

    def _take_back(self) -> float:
        """Let resources find the tasks that came back from bays; return the most urgent level of these."""
        found = [waiting for waiting in self.bays.returned if not waiting.is_gone and waiting.bay is None]
        self.bays.returned.clear()
        for waiting in found:
            self._freshen(waiting)
        return min((waiting.level for waiting in found), default=math.inf)

    def _mix_in(self, lineup: Lineup, now: float) -> None:
        """Let resources find the tasks that are new in a level."""
        for (kind, keeps_to), fresh in self._fresh.pop(lineup.number, {}).items():
            if keeps_to is None:
                lineup.look(self._seats.groups(kind) if fresh.is_next else ())
                able = self._seats.able(kind)
                self._looked += GAPS  # in turn, each time others
                for place in range(self._looked, self._looked + min(GAPS, len(able))):
                    self._fill_gap(self._seats[able[place % len(able)]], lineup, kind, fresh, now)
            elif (seat := self._seats.get(keeps_to)) is not None:
                if lineup.number in seat.spots:
                    seat.spots[lineup.number][0].put(seat)
                self._fill_gap(seat, lineup, kind, fresh, now)

    def _fill_gap(self, seat: Seat, lineup: Lineup, kind: str, fresh: _Fresh, now: float) -> None:
        """Wake a resource without room for another task that has room for a new one of the type.

        The new one is smaller, or the room is kept from the other one and not from this one.
        """
        lacked = self._lacked(seat, lineup)
        if not seat.is_open or lacked is None:
            return
        asleep = seat.asleep.get(lineup.number)
        is_kept = fresh.is_quiet and (lineup.is_kept(seat) or (asleep is not None and bool(asleep.kept)))
        usual = self.costing.of_type(kind, seat.name)
        for own in fresh.costs:
            costs = usual if own is None else {limit: own.get(limit, units) for limit, units in usual.items()}
            is_less = is_kept or is_smaller(costs, lacked)
            if is_less and self._keeping.fits(seat.name, costs, now, lineup.number):
                self._eager.add(seat.name)
                lineup.awake.put(seat)
                return

    def _lacked(self, seat: Seat, lineup: Lineup) -> Costs | None:
        """Return the costs of the task for which a resource waits for room in a level; None if it waits for none."""
        spot = seat.spots.get(lineup.number)
        if spot is not None and isinstance(spot[0], Gate) and spot[0].is_shut:  # maybe without a look of its own
            return spot[0].costs
        asleep = seat.asleep.get(lineup.number)
        return None if asleep is None else asleep.costs

    def _next_start(self, seat: Seat, lineup: Lineup, head: Waiting, now: float) -> Start | None:
        """Start the next task of the level on the resource; None if none fits, and it has another queue then."""
        number = lineup.number
        if seat.credits and (owed := self._owed(seat, now)) is not None:
            return owed
        costs = self.costing.of(head, seat.name)
        if head.bay is not None or (head.ids and self.bays.holds_back(head, costs, now)):
            return None
        standing = self.window.standing(head)
        if seat.name in self._eager:
            self._eager.discard(seat.name)
        elif self.lineups.goes_to_a_gate(seat, lineup, costs, standing):
            return None
        seat.asleep.pop(number, None)
        if self._keeping.fits(seat.name, costs, now, standing):
            delay = self._claims.delayed(seat, head, costs, now)
            if delay is None:
                return self._start(seat, head, costs, now)
            lacking, node = Lacking(delay.until, set(), frozenset(), None), delay.node
        else:
            lacking = self._keeping.lacking(seat.name, costs, now, standing)
            node = lacking.node
        if lacking.until <= now:
            lacking = lacking._replace(until=now + LEAST_S)
        sleep = self._claims.make(seat, number, head, costs, lacking, now)
        smaller, are_there = self._gaps.smaller(seat, lineup.level, sleep, now)
        if smaller is not None:
            del seat.asleep[number]
            return self._start(seat, smaller, self.costing.of(smaller, seat.name), now, head)
        if are_there or sleep.node is None:
            sleep.looks_at = min(sleep.until, now + LOOK_S, released_at(now))
        self.lineups.sleep(seat, lineup, sleep, node, standing)
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
            if self._accounts.fits(seat.name, costs, now) and not self.bays.holds_back(head, costs, now):
                seat.credits[kind] = credit - 1.0
                return self._start(seat, head, costs, now)
        return None

    def _start(self, seat: Seat, waiting: Waiting, costs: Costs, now: float, head: Waiting | None = None) -> Start:
        """Start a task on the resource; `head`: the next task, if this one goes before it in a gap."""
        ends_at = now + self._kind(waiting).duration_s
        charge = self._keeping.charge(seat.name, costs, now, waiting.level, ends_at, waiting.task, waiting.ids)
        level = self.window.level(waiting.level)
        assert level is not None, "it waits there"
        turn = min(level.turn(each.task.tenant) for each in (waiting, head or waiting))
        reached = self._shares.reach(seat, waiting.level, turn)
        self.window.take(waiting, Spent(self.costing.units(waiting, seat.name, costs), reached))
        if waiting.ids:
            self.bays.started(waiting, costs, now)
        for name in seat.credits:
            if name in self.window.sums:
                seat.credits[name] = min(MOST_CREDIT, seat.credits[name] + self._parts[name])
        return Start(waiting, seat.name, charge, costs)

    # -------------------------------------------------------------------------------------------------- small answers

    def _kind(self, waiting: Waiting) -> TaskType:
        return self._pool.types[waiting.task.type]

    def _of_key(self, kind: str, key: str) -> str | None:
        """Return the resource of a key, among those that are open."""
        return home_of(key, (name for name in self._seats.able(kind) if self._seats[name].is_open))
