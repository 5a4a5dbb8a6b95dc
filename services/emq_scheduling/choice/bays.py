"""Where tasks wait for room under limits by tenant and by key, so that they stand in nobody's way.

A next task that such a limit has no room for leaves the line that resources look at, for the *bay* of its account
(`emq_scheduling.limits.keyed`). The next task of its line may be one of another key. New tasks of the same level and
type join it there. So a task costs at most one look in vain for each time its account fills up, and resources never
search a line for a task that may start.

A bay has a line for each level and type. Once the account may have room, because time passed, a task ended, use was
saved or the pool changed, the first of each line goes back to where resources look, as long as it has room. It competes
there as if it had never been away; each start of the account calls the next one. Nothing passes a task of a bay that
goes before it: the more urgent, then the nearest deadline, then the turns of tenants and the order of submits. So large
tasks of a key do not starve behind small ones, and a task that has room, but no resource, holds up no task of another
type.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter

from emq_scheduling.choice.lines import Line
from emq_scheduling.choice.spreads import Spread, spread_of
from emq_scheduling.choice.waiting import Waiting
from emq_scheduling.choice.window import Level, Window
from emq_scheduling.limits.keyed import Id, KeyAccount, KeyedAccounts
from emq_scheduling.model import DEFAULT_COST, Costs

LEAST_S = 0.001
"""Least seconds until a bay without room is looked at again."""

LOOKS = 500
"""Most bays that are looked at each second although nothing happened."""

SPARE = 64
"""Timers that are held beyond twice the bays, before those that do not count are dropped."""

_Head = tuple[int, tuple[float, float, int], Level, Waiting]
"""The first task of a line: its level, its place there, and that level's tasks."""


class Bay:
    """The tasks that wait for room of one account.

    Attributes:
        account: the account.
        lines: by level and type.
        tasks, units: how many tasks wait here, and what they lack.
        looks_at: when it is looked at next; infinity if nobody knows.
    """

    __slots__ = ("_bays", "account", "lines", "looks_at", "tasks", "units")

    def __init__(self, account: KeyAccount, bays: Bays) -> None:
        self._bays = bays
        self.account = account
        self.lines: dict[tuple[int, str], tuple[Level, Line]] = {}
        self.looks_at = math.inf
        self.tasks = 0
        self.units = 0.0

    def put(self, waiting: Waiting, level: Level) -> None:
        """Let a task of a level wait here, which is in no line."""
        key = (waiting.level, waiting.task.type)
        if key not in self.lines:
            line = level.line(None)
            self.lines[key] = level, line
            level.aside[line] = None
        self.lines[key][1].add(waiting)
        waiting.bay = self
        self.tasks += 1
        self.units += waiting.units
        self._bays.count(waiting, 1)

    def drop(self, waiting: Waiting) -> None:
        """Let a task wait here no more."""
        key = (waiting.level, waiting.task.type)
        level, line = self.lines[key]
        line.count -= 1
        waiting.bay = None
        self.tasks -= 1
        self.units -= waiting.units
        self._bays.count(waiting, -1)
        if not line.count:
            del self.lines[key], level.aside[line]
            if not self.lines:
                self._bays.ended(self)

    def heads(self) -> list[_Head]:
        """Return the first task of each line, the one that is next first."""
        found: list[_Head] = []
        for (number, _), (level, line) in self.lines.items():
            if (head := line.head()) is not None:
                found.append((number, head[0], level, head[1]))
        found.sort(key=lambda each: each[:2])
        return found

    def is_before(self, waiting: Waiting, level: Level) -> bool:
        """Return whether a task waits here that goes before this one."""
        if not self.lines:
            return False
        number, place, _, _ = self.heads()[0]
        return (number, *place[:2]) < (waiting.level, *level.order(waiting))


class Bays:
    """The bays of a pool.

    Args:
        window: the waiting tasks.

    Attributes:
        aside: by type and tenant, how many tasks wait here.
        returned: tasks that went back to their lines and that nobody has looked at since.
    """

    def __init__(self, keyed: KeyedAccounts, window: Window) -> None:
        self._keyed = keyed
        self._window = window
        self._bays: dict[Id, Bay] = {}
        self._timers: list[tuple[float, int, Bay]] = []
        self._numbers = itertools.count()
        self._looked = 0
        self.aside: dict[str, Counter[str]] = {}
        self.returned: list[Waiting] = []

    def __len__(self) -> int:
        """Return how many keys have tasks that wait here."""
        return len(self._bays)

    def joins(self, waiting: Waiting, usual: Costs, now: float) -> bool:
        """Put a new task behind those of its level and type that wait in a bay; return False if none do.

        Args:
            usual: the costs of its type.
        """
        for at in waiting.ids:
            bay = self._bays.get(at)
            if bay is None or (waiting.level, waiting.task.type) not in bay.lines:
                continue
            unit = bay.account.unit
            units = (waiting.costs or {}).get(unit, usual.get(unit, DEFAULT_COST))
            if units > 0:
                self._put(waiting, bay, units)
                if bay.heads()[0][3] is waiting:  # it goes before those that lack room, and may lack none
                    self.look(at, now)
                return True
        return False

    def holds_back(self, waiting: Waiting, costs: Costs, now: float) -> bool:
        """Put a next task into a bay if a limit by key has no room for it; return whether that is so."""
        for at in waiting.ids:
            account, bay = self._keyed.open(at, now), self._bays.get(at)
            units = costs.get(account.unit, DEFAULT_COST)
            if units <= 0:
                continue
            is_behind = bay is not None and bay.is_before(waiting, self._level(waiting))
            if not is_behind and self._may_at(account, waiting, units, now) <= now:
                continue
            if bay is None:
                bay = self._bays[at] = Bay(account, self)
                account.holds += 1
            self._put(waiting, bay, units)
            for other in waiting.ids:  # its place there is free again
                self.look(other, now)
            return True
        return False

    def started(self, waiting: Waiting, costs: Costs, now: float) -> None:
        """A task was charged to its accounts: others of these may go next."""
        for at in waiting.ids:
            account = self._keyed.open(at, now)
            if (spread := self._spread(account, now)) is not None:
                spread.count(waiting.level, costs.get(account.unit, DEFAULT_COST), now)
            self.look(at, now)

    def look(self, at: Id, now: float) -> None:
        """Let tasks of an account go back to their lines if it has room for them."""
        bay = self._bays.get(at)
        if bay is None:
            return
        for _, _, level, waiting in bay.heads():
            may_at = self._may_at(bay.account, waiting, waiting.units, now)
            if may_at > now:
                if may_at < bay.looks_at:
                    bay.looks_at = may_at
                    heapq.heappush(self._timers, (may_at, next(self._numbers), bay))
                    if len(self._timers) > 2 * len(self._bays) + SPARE:  # most of them are of bays that have ended
                        self._timers = [entry for entry in self._timers if entry[2].looks_at == entry[0]]
                        heapq.heapify(self._timers)
                break  # those behind it wait, too
            level.leave(waiting)
            level.enter(waiting)
            self.returned.append(waiting)

    def wake(self, now: float) -> None:
        """Look again at the bays for which it is time, and at those that a save has given room."""
        for account in self._keyed.roomy:
            self.look(account.id, now)
        self._keyed.roomy.clear()
        while self._timers and self._timers[0][0] <= now:
            at, _, bay = heapq.heappop(self._timers)
            if bay.looks_at == at:
                bay.looks_at = math.inf
                if self._bays.get(bay.account.id) is bay:
                    self.look(bay.account.id, now)

    def next_at(self) -> float:
        """Return when to call `wake` next; infinity for never."""
        while self._timers and self._timers[0][2].looks_at != self._timers[0][0]:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else math.inf

    def look_again(self, now: float) -> None:
        """Look at some bays although nothing happened, in turn: call this about once a second."""
        found = list(self._bays)
        self._looked = self._looked % len(found) if found else 0
        for at in (found[self._looked :] + found[: self._looked])[:LOOKS]:
            self.look(at, now)
        self._looked += LOOKS

    def follow(self) -> list[Waiting]:
        """Let all tasks go back to their lines, since the limits or the types have changed; return those tasks."""
        found = self._window.all()
        back = [waiting for waiting in found if waiting.bay is not None]
        for waiting in found:
            waiting.ids = self._keyed.ids(waiting.task)
        for waiting in back:
            level = self._level(waiting)
            level.leave(waiting)
            level.enter(waiting)
        return back

    def count(self, waiting: Waiting, tasks: int) -> None:
        """Count a task that begins to wait in a bay (`tasks` is 1), or does so no more (-1)."""
        tenants = self.aside.setdefault(waiting.task.type, Counter())
        tenants[waiting.task.tenant] += tasks
        if not tenants[waiting.task.tenant]:
            del tenants[waiting.task.tenant]
            if not tenants:
                del self.aside[waiting.task.type]

    def ended(self, bay: Bay) -> None:
        """A bay has no tasks any more."""
        del self._bays[bay.account.id]
        bay.looks_at = math.inf
        self._keyed.released(bay.account)

    def held(self) -> dict[str, list[Bay]]:
        """Return by limit where tasks wait for the room of keys."""
        found: dict[str, list[Bay]] = {}
        for (name, _), bay in self._bays.items():
            found.setdefault(name, []).append(bay)
        return found

    def _put(self, waiting: Waiting, bay: Bay, units: float) -> None:
        level = self._level(waiting)
        level.leave(waiting)
        waiting.units = units
        bay.put(waiting, level)

    def _level(self, waiting: Waiting) -> Level:
        level = self._window.level(waiting.level)
        assert level is not None, "it waits there"
        return level

    def _may_at(self, account: KeyAccount, waiting: Waiting, units: float, now: float) -> float:
        """Return when a task may start by one limit: now, or when to look again; infinity if nobody knows."""
        if not self._keyed.fits(account, units, now):
            return max(account.next_at(units, now), now + LEAST_S)
        spread = self._spread(account, now)
        return now if spread is None else now + spread.wait_s(waiting.level, units, now)

    def _spread(self, account: KeyAccount, now: float) -> Spread | None:
        """Return what the urgent tasks of a key leave to its others; None where all are equally urgent."""
        if account.is_shared is None:
            most_urgent = self._keyed.most_urgent(account)
            account.is_shared = most_urgent is not None
            if most_urgent is not None:
                account.spread = spread_of(account.meter, now, None)
                account.spread.follow(account.meter, most_urgent)
        found: Spread | None = account.spread
        return found
