"""The accounts of a pool: the use of each resource, and the room under all limits of it and of its parents.

A task is charged to every limit of its resource and of all parents above, and to those by key
(`emq_scheduling.limits.keyed`), or to none. Bad health lowers a resource below its limits (`set_factor`): the task is
then charged to a pace as well, which only slows starts down.

Pure and synchronous; times are seconds since the epoch, passed in.
"""

from __future__ import annotations

import math
from collections.abc import Set
from typing import NamedTuple

from emq.runtime.inputs import shown
from emq_scheduling.limits import ahead
from emq_scheduling.limits.account import PROBE_FACTOR, Account, Entry, Key, Path
from emq_scheduling.limits.charge import Charge
from emq_scheduling.limits.keyed import NO_IDS, Counted, Id, KeyAccount, KeyedAccounts
from emq_scheduling.limits.limits import Meter
from emq_scheduling.model import DEFAULT_COST, Costs, Period, Pool

__all__ = ["PROBE_FACTOR", "Accounts", "Charge", "First"]

NO_METERS: Set[int] = frozenset()

FORMER = 1_000
"""Most resources that are gone whose use is remembered, those that went last: debt under an amount of 0 never ends."""


class First(NamedTuple):
    """A task that is charged before the one that is asked about.

    Attributes:
        resource: where it runs.
        costs: its costs there.
        ends_at: when it will probably end; infinity if nobody knows.
    """

    resource: str
    costs: Costs
    ends_at: float = math.inf


class Accounts:
    """The use of all resources of a pool. It starts empty.

    Args:
        pool: has passed `emq_scheduling.pools.rules.check`.
        saves: True if `emq_scheduling.limits.usage` saves the counts: limits per minute, hour and day then allow only
            saved starts.

    Attributes:
        changed: names of the resources that the last `follow` found new, different or gone; at first all.
        moved: those of new resources, and of those with other parents above them.
        keyed: the accounts of limits by key.
    """

    def __init__(self, pool: Pool, now: float, *, saves: bool = False) -> None:
        self._accounts: dict[str, Account] = {}
        self._former: dict[str, Account] = {}  # of resources that are gone, whose use still counts if they come back
        self._pool = Pool(pool.name)
        self.changed: Set[str] = frozenset()
        self.moved: Set[str] = frozenset()
        self.keyed = KeyedAccounts(saves=saves)
        self._saves = saves
        self._paths: dict[str, Path] = {}
        self._below: dict[str, dict[str, Path]] = {}  # by resource, the paths that it is part of
        self._open: dict[Charge, None] = {}
        self._begins_at = -math.inf
        self.follow(pool, now)

    def begin(self, now: float) -> None:
        """Let nothing start in the second of `now`: a former owner of the pool may have used it."""
        self._begins_at = math.floor(now) + 1.0
        self.keyed.begin(now)

    def follow(self, pool: Pool, now: float) -> None:
        """Take over a changed pool. Lower amounts count at once; units used and in flight are kept."""
        before, self._pool = self._pool, pool
        gone = self._accounts.keys() - pool.resources.keys()
        was = before.resources.get
        self.changed = gone | {name for name, resource in pool.resources.items() if was(name) != resource}
        if before.calendars != pool.calendars:
            self.changed |= {name for name, resource in pool.resources.items() if resource.calendar is not None}
        for name in gone:
            account = self._former[name] = self._accounts.pop(name)
            account.set_factor(1.0, now)
        for name in self.changed - gone:
            account = self._accounts.get(name) or self._former.pop(name, None) or Account(name)
            self._accounts[name] = account
            resource = pool.resources[name]
            account.follow(resource, None if resource.calendar is None else pool.calendars[resource.calendar], now)
            if self._saves:
                account.save()
        self._accounts = {name: self._accounts[name] for name in pool.resources}
        self._follow_paths(gone)
        self._forget_former(now)
        self.keyed.follow(pool, now)
        for charge in self._open:
            charge.rebind(self._path(charge.resource, now) if charge.resource in self._paths else None, now)

    def sweep(self, now: float) -> None:
        """Forget what does not count any more: call this about once a second."""
        self._forget_former(now)
        self.keyed.sweep(now)

    def _forget_former(self, now: float) -> None:
        if self._former:
            left = [name for name, account in self._former.items() if account.counts(now)][-FORMER:]
            self._former = {name: self._former[name] for name in left}

    def counts(self, resource: str) -> bool:
        """Return whether the pool has a resource, or its use would still count if it came back."""
        return resource in self._accounts or resource in self._former

    def _follow_paths(self, gone: Set[str]) -> None:
        """Make the paths of the resources that have moved again; let others below changed ones follow when needed."""
        pool, paths = self._pool, self._paths
        heads = {name for name in self.changed - gone if name not in paths or paths[name].line != pool.line(name)}
        self.moved = {name for head in heads for name in (head, *self._below.get(head, ()))} - gone
        for name in self.moved | gone:
            if (path := paths.pop(name, None)) is not None:
                for each in path.line:
                    self._below[each].pop(name, None)
        for name in gone:
            del self._below[name]
        for name in self.moved:
            path = paths[name] = Path([self._accounts[each] for each in pool.line(name)])
            for each in path.line:
                self._below.setdefault(each, {})[name] = path
        for name in self.changed - gone:
            for path in self._below[name].values():
                path.forget()

    def fits(self, resource: str, costs: Costs, now: float) -> bool:
        """Return True if a task with these costs may start on the resource now.

        Args:
            costs: units by limit name; 1 of each limit that is not named.
        """
        path = self._paths[resource]
        if now >= path.changes_at:
            path.turn(now)
        if now < self._begins_at or path.paused:
            return False
        cost = costs.get
        for meter, name in path.entries:  # noqa: SIM110 - twice as fast as all(), and this is the inner loop
            if not meter.fits(cost(name, DEFAULT_COST), now):
                return False
        return True

    def charge(
        self,
        resource: str,
        costs: Costs,
        now: float,
        ends_at: float = math.inf,
        task: Counted | None = None,
        ids: tuple[Id, ...] = NO_IDS,
    ) -> Charge | None:
        """Charge a task that starts now to all limits; return None, and charge nothing, if it does not fit.

        Args:
            ends_at: when it will probably end, for `expected_at`; infinity if nobody knows.
            task: the task, for limits in flight by key that come while it runs; None if there will be none.
            ids: the accounts of the limits by key that count it.
        """
        path = self._paths[resource]
        if now >= path.changes_at:
            path.turn(now)
        if now < self._begins_at or path.paused:
            return None
        cost, entries = costs.get, path.entries
        for meter, name in entries:
            if not meter.fits(cost(name, DEFAULT_COST), now):
                return None
        keyed: tuple[KeyAccount, ...] = ()
        if ids:
            keyed = tuple(self.keyed.open(each, now) for each in ids)
            for account in keyed:
                if not self.keyed.fits(account, cost(account.unit, DEFAULT_COST), now):
                    return None
            entries += tuple(entry for account in keyed for entry in account.entries)
        units = []
        for meter, name in entries:
            each = cost(name, DEFAULT_COST)
            meter.charge(each, now)
            units.append(each)
        made = Charge(self, path, units, now, ends_at, task, keyed)
        self._open[made] = None
        return made

    def last_to_fit(self, resource: str, costs: Costs, now: float) -> str | None:
        """Return the resource or the parent that has room for a task last; None if all have room now."""
        found, latest = None, math.nextafter(now, math.inf)
        for account in self._path(resource, now).accounts:
            entries = account.entries()
            at = max((meter.next_at(costs.get(name, DEFAULT_COST), now) for meter, name in entries), default=now)
            if at >= latest:
                found, latest = account.name, at
        return found

    def next_at(self, resource: str, costs: Costs, now: float) -> float:
        """Return the earliest time from `now` on at which the task fits if nothing else is charged until then.

        Returns:
            infinity if it never fits, or if only the end of a task in flight, or a change of the pool or of a factor
            makes room.
        """
        path = self._path(resource, now)
        return math.inf if path.paused else self._earliest(path, path.entries, costs, now, {}, NO_METERS)

    def expected_at(self, resource: str, costs: Costs, now: float, first: First | None = None) -> float:
        """Return when a task will probably fit: as `next_at`, but tasks in flight end when they are expected to.

        So a task that waits for units in flight is not put off for ever by smaller ones: one of these may start if this
        does not become later with it.

        Args:
            first: another task, which is charged first, now; None for none.
        """
        path = self._path(resource, now)
        if path.paused:
            return math.inf
        others = self._path(first.resource, now).ids if first else NO_METERS
        found = self._earliest(path, path.periods, costs, now, first.costs if first else {}, others)
        return max(found, self._in_flight_at(path, costs, now, first))

    def in_flight_at(self, resource: str, costs: Costs, now: float, first: First | None = None) -> float:
        """Return when a task will probably fit under the limits in flight alone; arguments as for `expected_at`."""
        return self._in_flight_at(self._path(resource, now), costs, now, first)

    def holds_in_flight(self, first: First, other: str, now: float) -> bool:
        """Return whether a task is counted by a limit in flight that limits another resource, too."""
        shared, in_flight = self._path(other, now).ids, self._path(first.resource, now).in_flight
        return any(id(meter) in shared and first.costs.get(name, DEFAULT_COST) > 0 for meter, name in in_flight)

    def _in_flight_at(self, path: Path, costs: Costs, now: float, first: First | None) -> float:
        found, others = now, self._path(first.resource, now).ids if first else NO_METERS
        for meter, name in path.in_flight:
            other = first.costs.get(name, DEFAULT_COST) if first and id(meter) in others else 0.0
            ends_at = first.ends_at if first else math.inf
            found = max(found, meter.expected_at(costs.get(name, DEFAULT_COST), now, other, ends_at))
        return found

    def _earliest(
        self, path: Path, entries: tuple[Entry, ...], costs: Costs, now: float, after: Costs, others: Set[int]
    ) -> float:
        found = max(now, self._begins_at)
        for meter, name in entries:
            other = after.get(name, DEFAULT_COST) if id(meter) in others else 0.0
            at = meter.next_at(costs.get(name, DEFAULT_COST), now, other)
            if at > found:
                found = at
        if found < path.changes_at or path.changes_at == math.inf:
            return found
        return max(self._begins_at, ahead.earliest(path, entries, costs, now, after, others))

    def _path(self, resource: str, now: float) -> Path:
        path = self._paths[resource]
        if now >= path.changes_at:
            path.turn(now)
        return path

    def account(self, resource: str) -> Account:
        """Return the resource's own account."""
        return self._accounts[resource]

    def names(self) -> list[str]:
        """Return the names of all resources."""
        return list(self._accounts)

    def meters(self, resource: str) -> list[tuple[str, tuple[str, Period], Meter]]:
        """Return the owner, name, period and meter of all limits of the resource and its parents.

        The meters of limits that remain stay the same when the pool changes; ask again then for new ones.
        """
        accounts = self._paths[resource].accounts
        return [(account.name, key, meter) for account in accounts for key, meter in account.meters.items()]

    def relatives(self, resource: str) -> list[str]:
        """Return the resources whose room a task on this one takes, and itself: those that share a parent's limits."""
        if resource not in self._paths:
            return []
        found = {resource: None}
        for account in self._paths[resource].accounts:
            if account.meters or account.name == resource:
                found.update(dict.fromkeys(self._below[account.name]))
        return list(found)

    def set_factor(self, resource: str, factor: float, now: float) -> None:
        """Let a resource, and those below it, have only a part of its limits, while its health asks for it.

        Limits in flight are lowered to that part, but not below one task. Of limits with periods, the one with the
        shortest period of each name gets a pace: that part of its amount, spread evenly over the seconds. Quotas of a
        day stay as they are. A resource with neither gets that part of the tasks that run when it is lowered first.

        Args:
            factor: 0 to 1; 0 lets nothing start, and `PROBE_FACTOR` one task at a time.
        """
        account, below = self._accounts[resource], self._below[resource]
        account.turn(now)
        is_first = account.factor >= 1 > factor and not account.is_counted
        in_flight = sum(charge.resource in below for charge in self._open) if is_first else 0
        account.set_factor(factor, now, in_flight)
        for path in below.values():
            path.forget()

    def tell(
        self,
        resource: str,
        limit: str,
        left: float,
        reset_s: float,
        now: float,
        per: Period | None,
        of: str | None,
        since: float = math.inf,
    ) -> None:
        """Correct an account by what a provider says is left of a limit: less at once, more never.

        Args:
            limit: its name.
            left: units that the provider would still take.
            reset_s: seconds from now until its count begins again; until then, no more than `left` starts. A bucket
                fills up evenly until then. At most the limit's period counts.
            per: the period; None if there is only one.
            of: the resource, or its parent, that has the limit; None for the nearest.
            since: when the task started that the provider answered; see `Quote`.

        Raises:
            ValueError: there is no such limit, or several.
        """
        if resource not in self._paths:  # it was taken away
            return
        accounts = self._paths[resource].accounts
        of_name = [(each, key) for each in accounts for key in each.meters if key[0] == limit and key[1] != "in_flight"]
        found = [(each, key) for each, key in of_name if per in (None, key[1]) and of in (None, each.name)]
        account, keys = found[0][0] if found else None, [key for each, key in found if each is found[0][0]]
        if account is None or len(keys) != 1:
            known = ", ".join(f"{key[0]}/{key[1]} of {each.name}" for each, key in of_name) or "none of that name"
            what = f"{resource!r} has {'several limits' if keys else 'no limit'} that it may mean"
            raise ValueError(f"left of {shown(limit)}: {what} ({known}); name per and of")
        if account.tell(keys[0], left, reset_s, now, since):
            for path in self._below[account.name].values():
                path.forget()

    def left(self, resource: str, key: Key, now: float) -> tuple[float | None, float]:
        """Return what a provider says is left, and until when; (None, 0) unless that is less than the limit has."""
        account = self._accounts[resource]
        found = account.quotes[key].left(now) if key in account.quotes else None
        return (None, 0.0) if found is None or found[0] >= account.meters[key].room(now) else found

    def factor(self, resource: str) -> float:
        """Return the factor of the resource itself."""
        return self._accounts[resource].factor

    def used(self, now: float) -> dict[str, dict[str, float]]:
        """Return the units that count now, with debt, by resource and by limit, such as "requests/minute"."""
        return {
            account.name: {f"{name}/{per}": meter.used(now) for (name, per), meter in account.meters.items()}
            for account in self._accounts.values()
        }

    def used_lately(self, now: float) -> dict[str, dict[str, float]]:
        """Return the same to be shown: of limits a second, the units of the second before if they were more."""
        return {
            account.name: {f"{name}/{per}": meter.used_lately(now) for (name, per), meter in account.meters.items()}
            for account in self._accounts.values()
        }

    def amounts(self, now: float) -> dict[str, dict[str, float]]:
        """Return the units allowed now by resource and by limit, such as "requests/minute"."""
        for account in self._accounts.values():
            account.turn(now)
        return {
            account.name: {f"{name}/{per}": meter.amount for (name, per), meter in account.meters.items()}
            for account in self._accounts.values()
        }

    def forget(self, charge: Charge) -> bool:
        """Note that a charge has ended; return False if it had ended before."""
        if charge not in self._open:
            return False
        del self._open[charge]
        return True
