"""What if: the present backlog and arrivals on a virtual clock, with and without changes of the pool.

Changes can be written as text, such as

    add channel-13=copy-of:channel-2
    remove channel-3
    limit channel-1 requests=50/second
    limit channel-1 requests=none/second
    limit channel-1 requests=600/minute bucket of 50
    limit channel-1 requests=600/minute rolling
    pause channel-4
    resume channel-4
    takes channel-1=verification,marketing
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import get_args

import msgspec

from emq.runtime import errors
from emq.runtime.inputs import shown
from emq_scheduling.forecast.prediction import HORIZON_S, Forecast, forecast
from emq_scheduling.model import Limit, Period, Pool, Resource
from emq_scheduling.pools import kinds, rules
from emq_scheduling.records.snapshot import PoolState

WAYS = (
    "add NAME=copy-of:RESOURCE, remove RESOURCE, limit RESOURCE NAME=AMOUNT/PERIOD [KIND], pause RESOURCE, "
    "resume RESOURCE, or takes RESOURCE=TYPE,TYPE"
)


class WhatIf(msgspec.Struct, frozen=True):
    """Two forecasts from the same state: of the pool as it is, and with the changes."""

    before: Forecast
    after: Forecast


def what_if(pool: Pool, state: PoolState, changed_pool: Pool, horizon_s: float = HORIZON_S) -> WhatIf:
    """Forecast waits, starts and utilisation with and without a change.

    Args:
        pool, changed_pool: have passed `rules.check`. The forecast of a pool leaves out tasks of types that it does not
            have. A resource that only `changed_pool` has begins unused.
        horizon_s: end of a forecast if tasks still wait then, in seconds.
    """
    return WhatIf(forecast(pool, state, horizon_s), forecast(changed_pool, state, horizon_s))


def changed(pool: Pool, changes: Iterable[str]) -> Pool:
    """Return the pool with changes written as text, one after the other; see the beginning of this file.

    Raises:
        InvalidPool: a text cannot be read, names something that the pool does not have, or leads to a pool that breaks
            a rule.
    """
    for text in changes:
        verb, _, rest = re.sub(r"\s+", " ", text.strip()).replace("=", " ", 1).partition(" ")
        rest = text.strip()[len(verb) :].lstrip(" =").strip()
        if verb not in _VERBS or not rest:
            raise errors.InvalidPool(f"change {shown(text)} cannot be read; write {WAYS}")
        made = msgspec.structs.replace(pool, resources=_VERBS[verb](pool, text, rest))
        pool = _without_lost(pool, made)
    rules.check(pool)
    return pool


Resources = Mapping[str, Resource]


def _without_lost(before: Pool, after: Pool) -> Pool:
    """Return the pool without costs and calendar amounts of removed limits."""
    types = {
        name: msgspec.structs.replace(kind, costs=_left(kind.costs, before.resources, after.resources))
        for name, kind in after.types.items()
    }
    resources = {}
    for name, resource in after.resources.items():
        above, was_above = _ancestry(after, name), _ancestry(before, name)
        takes = {kind: _left(costs, was_above, above) for kind, costs in resource.takes.items()}
        resources[name] = msgspec.structs.replace(resource, takes=takes)
    calendars = {}
    for name, calendar in after.calendars.items():
        users, were_users = _users(after, name), _users(before, name)
        hours = [
            msgspec.structs.replace(each, amounts=_left(each.amounts, were_users, users)) for each in calendar.hours
        ]
        calendars[name] = msgspec.structs.replace(calendar, hours=tuple(hours))
    return msgspec.structs.replace(after, types=types, resources=resources, calendars=calendars)


def _left(units: Mapping[str, float], before: Resources, after: Resources) -> dict[str, float]:
    """Return the units of limits that the resources still have; those of unknown limits stay, to be refused."""
    lost = _limit_names(before) - _limit_names(after)
    return {name: each for name, each in units.items() if name not in lost}


def _limit_names(resources: Resources) -> set[str]:
    return {limit.name for resource in resources.values() for limit in resource.limits}


def _ancestry(pool: Pool, name: str) -> dict[str, Resource]:
    """Return a resource with its parents; nothing if the pool has none of the name."""
    return {each: pool.resources[each] for each in pool.line(name)} if name in pool.resources else {}


def _users(pool: Pool, calendar: str) -> dict[str, Resource]:
    return {name: each for name, each in pool.resources.items() if each.calendar == calendar}


def _add(pool: Pool, text: str, rest: str) -> dict[str, Resource]:
    name, _, source = (part.strip() for part in rest.partition("="))
    if not source.startswith("copy-of:"):
        raise errors.InvalidPool(f"change {shown(text)} does not say what to add; write add NAME=copy-of:RESOURCE")
    if name in pool.resources:
        raise errors.InvalidPool(f"change {shown(text)}: resource {shown(name)} exists already; choose another name")
    return {**pool.resources, name: _known(pool, text, source.removeprefix("copy-of:"))}


def _remove(pool: Pool, text: str, rest: str) -> dict[str, Resource]:
    """Remove a resource and all resources below it."""
    _known(pool, text, rest)
    gone = {rest}
    while below := {n for n, each in pool.resources.items() if each.parent in gone and n not in gone}:
        gone |= below
    return {name: each for name, each in pool.resources.items() if name not in gone}


def _limit(pool: Pool, text: str, rest: str) -> dict[str, Resource]:
    beginnings = [name for name in pool.resources if rest.startswith(f"{name} ")]  # a name may have spaces
    name = max(beginnings, key=len) if beginnings else rest.partition(" ")[0]
    what = rest[len(name) :]
    found = re.fullmatch(r"(?P<limit>[^=]+)=(?P<amount>[^/]+)/(?P<per>.+)", what.strip())
    if found is None:
        raise errors.InvalidPool(f"change {shown(text)} names no limit; write limit RESOURCE requests=50/second")
    resource = _known(pool, text, name)
    limit, amount, period = (found[group].strip() for group in ("limit", "amount", "per"))
    per, _, kind = period.partition(" ")
    if per not in get_args(Period):
        periods = ", ".join(get_args(Period))
        raise errors.InvalidPool(f"change {shown(text)}: period {shown(per)} is not known; choose one of {periods}")
    there = [each for each in resource.limits if (each.name, each.per) == (limit, per)]
    limits = [each for each in resource.limits if each not in there]
    if amount != "none":
        made = there[0] if there else Limit(limit, 0.0, per)  # type: ignore[arg-type]  # checked above
        made = kinds.with_kind(made, kind.strip(), f"change {shown(text)}")
        try:
            limits.append(msgspec.structs.replace(made, amount=float(amount)))
        except ValueError:
            raise errors.InvalidPool(
                f"change {shown(text)}: amount {shown(amount)} is not a number; write one, or none for no limit"
            ) from None
    return {**pool.resources, name: msgspec.structs.replace(resource, limits=tuple(limits))}


def _set_paused(pool: Pool, text: str, rest: str, *, paused: bool) -> dict[str, Resource]:
    return {**pool.resources, rest: msgspec.structs.replace(_known(pool, text, rest), paused=paused)}


def _takes(pool: Pool, text: str, rest: str) -> dict[str, Resource]:
    name, _, listed = (part.strip() for part in rest.partition("="))
    resource = _known(pool, text, name)
    kinds = [kind.strip() for kind in listed.split(",") if kind.strip()]
    takes = {kind: resource.takes.get(kind, {}) for kind in kinds}
    return {**pool.resources, name: msgspec.structs.replace(resource, takes=takes)}


def _known(pool: Pool, text: str, name: str) -> Resource:
    resource = pool.resources.get(name)
    if resource is None:
        raise errors.InvalidPool(
            f"change {shown(text)}: pool {pool.name!r} has no resource {shown(name)}; correct the name"
        )
    return resource


_VERBS: dict[str, Callable[[Pool, str, str], dict[str, Resource]]] = {
    "add": _add,
    "remove": _remove,
    "limit": _limit,
    "pause": functools.partial(_set_paused, paused=True),
    "resume": functools.partial(_set_paused, paused=False),
    "takes": _takes,
}
