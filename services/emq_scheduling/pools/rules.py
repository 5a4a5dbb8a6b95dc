"""The rules for pools: which names and values go together, and which are legal but odd."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations

from emq.runtime import errors, plurals
from emq.runtime.inputs import shown
from emq.topics.model import MAX_DELAY_S
from emq_scheduling.model import Calendar, Hours, Limit, Pool, Resource, TaskType
from emq_scheduling.pools import hours as weekly
from emq_scheduling.pools import keyed, values

MAX_RESOURCES = 10_000
MAX_TYPES = 1_000
MAX_PRIORITY = MAX_ATTEMPTS = 1_000_000
LEAST_BEAT_S = 1.0
"""Least `beats_within_s` of a type: the host looks several times a second, and its event loop may be late."""

_SLACK = 1e-9


def check(pool: Pool) -> None:
    """Raise `InvalidPool` if a name or a value is wrong; the text names the first such value and the remedy."""
    with values.within(f"pool {shown(pool.name)}"):
        values.check_name("name", pool.name)
        values.check_zone(pool.zone)
        _check_sizes(pool)
    for name, calendar in pool.calendars.items():
        with values.within(f"pool {pool.name!r}: calendar {shown(name)}"):
            values.check_label("name", name)
            _check_calendar(calendar)
    for name, kind in pool.types.items():
        with values.within(f"pool {pool.name!r}: type {shown(name)}"):
            values.check_name("name", name)
            _check_type(pool, kind)
    for name, resource in pool.resources.items():
        with values.within(f"pool {pool.name!r}: resource {shown(name)}"):
            values.check_label("name", name)
            _check_resource(pool, name, resource)
    for name, tenant in pool.tenants.items():
        with values.within(f"pool {pool.name!r}: tenant {shown(name)}"):
            values.check_tenant(name)
            values.check_weight(tenant.weight)
    keyed.check(pool)
    _check_together(pool)


def _check_sizes(pool: Pool) -> None:
    for what, found, most in (
        ("resource", len(pool.resources), MAX_RESOURCES),
        ("type", len(pool.types), MAX_TYPES),
    ):
        if found > most:
            raise errors.InvalidPool(f"{plurals.count(found, what)} are too many; split the pool: at most {most:,}")


def _check_calendar(calendar: Calendar) -> None:
    values.check_zone(calendar.zone)
    for number, each in enumerate(calendar.hours, 1):
        with values.within(f"hours {number}"):
            weekly.spans(each)
            for name, amount in each.amounts.items():
                values.check_number(f"amount of {shown(name)}", amount)
    for (i, one), (j, other) in combinations(enumerate(calendar.hours, 1), 2):
        both = [name for name in one.amounts if name in other.amounts]
        if both and weekly.overlap(one, other):
            raise errors.InvalidPool(
                f"hours {i} ({_written(one)}) and hours {j} ({_written(other)}) overlap, and both set "
                f"{shown(both[0])}; part them, or set it in one of them"
            )


def _written(hours: Hours) -> str:
    return f"{hours.days or 'each day'} {hours.start} to {hours.end}"


def _check_type(pool: Pool, kind: TaskType) -> None:
    values.check_number("priority", kind.priority, most=MAX_PRIORITY)
    if kind.near_priority is not None and not 0 <= kind.near_priority <= kind.priority:
        raise errors.InvalidPool(f"near_priority {kind.near_priority} must be from 0 to its priority, {kind.priority}")
    for what, seconds in (
        ("longest_wait_s", kind.longest_wait_s),
        ("ttl_s", kind.ttl_s),
        ("timeout_s", kind.timeout_s),
        ("duration_s", kind.duration_s),
    ):
        if seconds is not None:
            values.check_number(what, seconds, above=0, most=MAX_DELAY_S)
    if kind.beats_within_s is not None:
        values.check_number("beats_within_s", kind.beats_within_s, least=LEAST_BEAT_S, most=MAX_DELAY_S)
    values.check_number("share", kind.share)
    if kind.share > 1:
        raise errors.InvalidPool(f"share {kind.share:g} must be from 0 to 1")
    if kind.max_attempts < 1:
        raise errors.InvalidPool(f"max_attempts {kind.max_attempts} must be at least 1")
    values.check_number("max_attempts", kind.max_attempts, most=MAX_ATTEMPTS)
    if not kind.backoff_s:
        raise errors.InvalidPool("backoff_s must list at least one number of seconds")
    for seconds in kind.backoff_s:
        values.check_number("backoff_s", seconds, most=MAX_DELAY_S)
    for name, units in kind.costs.items():
        values.check_known("costs: limit", name, pool.units())
        values.check_number(f"cost of {shown(name)}", units)
    for number, each in enumerate(kind.hours, 1):
        with values.within(f"hours {number}"):
            weekly.spans(each)
            if each.amounts:
                raise errors.InvalidPool("amounts are for calendars; say in the calendar of a resource how much it may")


def _check_resource(pool: Pool, name: str, resource: Resource) -> None:
    values.check_weight(resource.weight)
    values.check_number("price", resource.price)
    if resource.parent is not None:
        values.check_known("parent", resource.parent, pool.resources)
        _check_acyclic(pool, name)
    if resource.calendar is not None:
        values.check_known("calendar", resource.calendar, pool.calendars)
    seen = set[tuple[str, str]]()
    for limit in resource.limits:
        values.check_label("limit", limit.name)
        values.check_limit(limit)
        if (limit.name, limit.per) in seen:
            raise errors.InvalidPool(f"limit {shown(limit.name)} per {limit.per} is there twice; keep one")
        seen.add((limit.name, limit.per))
    for kind, costs in resource.takes.items():
        values.check_known("takes: type", kind, pool.types)
        for limit_name, units in costs.items():
            values.check_number(f"cost of {shown(limit_name)} for {shown(kind)}", units)


def _check_acyclic(pool: Pool, name: str) -> None:
    path = [name]
    at = pool.resources[name].parent
    while at is not None and at in pool.resources:
        path.append(at)
        if at == name or len(path) > len(pool.resources):
            shown_path = " > ".join(path[:8])
            raise errors.InvalidPool(f"its parents lead back to it ({shown_path}); give one of them another parent")
        at = pool.resources[at].parent


# ----------------------------------------------------------------------------------------------------------- together


def _check_together(pool: Pool) -> None:
    shares = {name: kind.share for name, kind in pool.types.items() if kind.share}
    if sum(shares.values()) > 1 + _SLACK:
        given = ", ".join(f"{name} {share:g}" for name, share in shares.items())
        raise errors.InvalidPool(
            f"pool {pool.name!r}: the shares of its types ({given}) add up to {sum(shares.values()):g}; lower them to "
            "at most 1"
        )
    least = keyed.least_amounts(pool)
    for name, resource in pool.resources.items():
        with values.within(f"pool {pool.name!r}: resource {shown(name)}"):
            _check_amounts(pool, resource)
            for kind in resource.takes:
                _check_costs(pool, name, kind, least)
    _check_calendars_used(pool)


def _check_amounts(pool: Pool, resource: Resource) -> None:
    """Refuse a calendar that does not say which of two limits of one name it means."""
    for amount in _names_in(pool.calendars[resource.calendar]) if resource.calendar else ():
        periods = [limit.per for limit in resource.limits if limit.name == amount]
        if len(periods) > 1:
            raise errors.InvalidPool(
                f"calendar {resource.calendar!r} sets {shown(amount)}, of which there are limits per "
                f"{' and per '.join(periods)}; give these limits different names"
            )


def _check_costs(pool: Pool, name: str, kind: str, least: Mapping[str, float]) -> None:
    limits = [(each, limit) for each in pool.line(name) for limit in pool.resources[each].limits]
    costs = pool.costs(kind, name)
    for limit_name in pool.resources[name].takes[kind]:
        values.check_known(f"takes {shown(kind)}: limit", limit_name, costs)
    keyed.check_costs(pool, kind, costs, least)
    for owner, limit in limits:
        most = limit.at_once(most_of(pool, pool.resources[owner], limit))
        if 0 < most < costs[limit.name]:
            whose = "" if owner == name else f" of {shown(owner)}"
            cost = f"a task of type {shown(kind)} costs {costs[limit.name]:g} of {shown(limit.name)}"
            if limit.burst is not None:
                raise errors.InvalidPool(
                    f"{cost}, but the burst{whose} is {most:g}, so none could start; raise the burst, or lower the cost"
                )
            raise errors.InvalidPool(
                f"{cost}, but the limit{whose} is never above {most:g} per {limit.per.replace('_', ' ')}, so none "
                "could start; raise the limit, lower the cost, or count over a longer period"
            )


def most_of(pool: Pool, resource: Resource, limit: Limit) -> float:
    """Return the largest amount that a limit of the resource ever has, by its calendar."""
    return max(amounts_of(pool, resource, limit))


def amounts_of(pool: Pool, resource: Resource, limit: Limit) -> list[float]:
    """Return the amounts that a limit of the resource has at some time, by its calendar."""
    calendar = pool.calendars.get(resource.calendar or "")
    by_hour = [
        hours.amounts[limit.name] for hours in (calendar.hours if calendar else ()) if limit.name in hours.amounts
    ]
    return [limit.amount, *by_hour]


def _check_calendars_used(pool: Pool) -> None:
    for name, calendar in pool.calendars.items():
        users = [resource for resource in pool.resources.values() if resource.calendar == name]
        limits = dict.fromkeys(limit.name for resource in users for limit in resource.limits)
        for amount in _names_in(calendar) if users else ():
            with values.within(f"pool {pool.name!r}: calendar {name!r}"):
                values.check_known("hours: limit", amount, limits)


def _names_in(calendar: Calendar) -> Iterator[str]:
    yield from dict.fromkeys(name for hours in calendar.hours for name in hours.amounts)


# ----------------------------------------------------------------------------------------------------------- oddities


def warnings(pool: Pool, waiting: Mapping[str, int] | None = None) -> list[str]:
    """Return legal but odd settings, one line each. The pool must have passed `check`.

    Args:
        waiting: number of waiting tasks by type; None if unknown.
    """
    found = []
    for name, kind in pool.types.items():
        able = pool.able(name)
        if kind.longest_wait_s is not None and kind.longest_wait_s < kind.duration_s:
            found.append(
                f"type {name!r}: longest_wait_s {kind.longest_wait_s:g} is below duration_s {kind.duration_s:g}, so "
                "each task is refused; give it more time, or say how long it really takes"
            )
        if not able:
            found.append(f"no resource takes type {name!r}{_left(name, waiting)}")
        elif closed := _closed(pool, able):
            found.append(f"every resource that takes type {name!r} {closed}{_left(name, waiting)}")
    for name in waiting or ():
        if name not in pool.types and (waiting or {})[name]:
            found.append(f"the pool has no type {name!r}{_left(name, waiting)}")
    parents = {resource.parent for resource in pool.resources.values()}
    for name, resource in pool.resources.items():
        if not resource.takes and name not in parents:
            found.append(f"resource {name!r} takes no type and is no parent, so nothing reaches it")
        elif resource.takes and not any(each.limits for each in pool.chain(name)):
            found.append(f"resource {name!r} and its parents have no limits; tasks start there without bound")
    used = {resource.calendar for resource in pool.resources.values()}
    found += [f"no resource uses calendar {name!r}" for name in pool.calendars if name not in used]
    return found


def _closed(pool: Pool, able: Iterable[str]) -> str:
    """Return why none of the resources can start a task; empty if one can."""
    chains = [pool.chain(name) for name in able]
    if all(any(each.paused for each in chain) for chain in chains):
        return "is paused"
    never = [any(most_of(pool, each, limit) == 0 for each in chain for limit in each.limits) for chain in chains]
    return "has a limit of 0" if all(never) else ""


def _left(kind: str, waiting: Mapping[str, int] | None) -> str:
    n = (waiting or {}).get(kind, 0)
    if not n:
        return "; tasks of it would wait"
    return f"; {plurals.count(n, 'task')} of it {'waits' if n == 1 else 'wait'}, and nothing is lost"
