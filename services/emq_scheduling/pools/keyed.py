"""The rules of limits by tenant and by key (`emq_scheduling.model.KeyLimit`)."""

from __future__ import annotations

from collections.abc import Mapping

from emq.runtime import errors, plurals
from emq.runtime.inputs import shown
from emq_scheduling.model import TENANT, Costs, KeyLimit, Pool
from emq_scheduling.pools import values

MAX_LIMITS = 20
"""Each task is charged to all that count its type."""
MAX_NAMES = 4
MAX_AMOUNTS = 10_000


def check(pool: Pool) -> None:
    """Raise `InvalidPool` if a limit by key is wrong."""
    if len(pool.limits) > MAX_LIMITS:
        found = plurals.count(len(pool.limits), "limit")
        raise errors.InvalidPool(f"pool {pool.name!r}: {found} by key are too many; give at most {MAX_LIMITS}")
    for name, limit in pool.limits.items():
        with values.within(f"pool {pool.name!r}: limit {shown(name)}"):
            values.check_label("name", name)
            _check(pool, name, limit)


def _check(pool: Pool, name: str, limit: KeyLimit) -> None:
    if not 1 <= len(limit.names) <= MAX_NAMES:
        raise errors.InvalidPool(
            f"by has {plurals.count(len(limit.names), 'name')}; give {TENANT}, or up to {MAX_NAMES} names of keys"
        )
    for each in limit.names:
        values.check_label("by", each)
        if limit.names.count(each) > 1:
            raise errors.InvalidPool(f"by names {shown(each)} twice; keep one")
    if limit.units:
        values.check_label("units", limit.units)
    values.check_limit(limit.limit(name, limit.amount))
    for kind in limit.types:
        values.check_known("types: type", kind, pool.types)
    if len(limit.amounts) > MAX_AMOUNTS:
        raise errors.InvalidPool(f"{len(limit.amounts):,} amounts are too many; give at most {MAX_AMOUNTS:,}")
    for key, amount in limit.amounts.items():
        if len(limit.names) > 1 and key.count(",") != len(limit.names) - 1:
            raise errors.InvalidPool(
                f"amounts: {shown(key)} is not a key; give the values of {', '.join(limit.names)}, with commas"
            )
        values.check_number(f"amount of {shown(key)}", amount)


def least_amounts(pool: Pool) -> dict[str, float]:
    """Return by limit the most that a task may cost for all accounts, without those of amount 0."""
    found = {}
    for name, limit in pool.limits.items():
        amounts = [amount for amount in (limit.amount, *limit.amounts.values()) if amount > 0]
        found[name] = min((limit.limit(name, 0.0).at_once(amount) for amount in amounts), default=0.0)
    return found


def check_costs(pool: Pool, kind: str, costs: Costs, least: Mapping[str, float]) -> None:
    """Raise `InvalidPool` if tasks of a type could never start for some key.

    Args:
        costs: of a task of the type on a resource.
        least: of `least_amounts`.
    """
    for name, limit in pool.limits.items():
        unit = limit.unit(name)
        if limit.counts_type(kind) and 0 < least[name] < costs[unit]:
            raise errors.InvalidPool(
                f"a task of type {shown(kind)} costs {costs[unit]:g} of {shown(unit)}, but limit {shown(name)} allows "
                f"no more than {least[name]:g} for some keys, so none of theirs could start; raise it, or lower the "
                "cost"
            )


def missing(pool: Pool, kind: str, keys: Mapping[str, str]) -> tuple[str, str] | None:
    """Return a limit and the name of a key that it needs, and that a task of the type lacks; None if it has all."""
    for name, limit in pool.limits.items():
        for each in limit.names if limit.counts_type(kind) else ():
            if each != TENANT and each not in keys:
                return name, each
    return None
