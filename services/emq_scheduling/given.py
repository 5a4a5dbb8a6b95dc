"""Checks the arguments of a task: one clear line for each wrong value, before anything is stored."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from emq.runtime import errors
from emq.runtime.inputs import finite, shown
from emq.topics.model import MAX_DELAY_S
from emq.topics.rules import validate_name
from emq_scheduling.model import TENANT, Costs
from emq_scheduling.pools import values

MAX_KEYS = 10
"""Of one task."""


def check_texts(task_type: object, tenant: object) -> None:
    """Raise unless type and tenant can be names. `InvalidMessage` or, for the name of a tenant, `InvalidPool`."""
    if not isinstance(task_type, str):
        raise errors.InvalidMessage(f"task type {shown(task_type)} is of type {type(task_type).__name__}; give text")
    if not isinstance(tenant, str):
        raise errors.InvalidMessage(f"tenant {shown(tenant)} is of type {type(tenant).__name__}; give text, or ''")
    if tenant:
        values.check_tenant(tenant)


def check_deadline(deadline_s: object, task_type: str) -> None:
    """Raise `InvalidMessage` unless it is a number of seconds, and `TaskRefused` if it is over already."""
    if isinstance(deadline_s, bool) or not isinstance(deadline_s, int | float) or not finite(deadline_s):
        raise errors.InvalidMessage(f"deadline_s {shown(deadline_s)} must be a finite number of seconds")
    if deadline_s > MAX_DELAY_S:
        raise errors.InvalidMessage(f"deadline_s {deadline_s:g} must be at most {MAX_DELAY_S:g}")
    if deadline_s <= 0:
        raise errors.TaskRefused(
            f"task type {task_type!r}: its deadline is in {deadline_s:g} s, which cannot be met; give it more time",
            code="deadline",
        )


def check_costs(costs: object, known: Collection[str]) -> Costs:
    """Return the costs; raise `InvalidMessage` unless they are units by the names of known limits."""
    if not isinstance(costs, Mapping):
        raise errors.InvalidMessage(f"costs {shown(costs)} must be units by limit name, such as tokens: 20")
    for name, units in costs.items():
        if name not in known:
            there = f"the pool has {', '.join(sorted(known)[:8])}" if known else "the pool has none"
            raise errors.InvalidMessage(f"costs name limit {shown(name)}, which is not known; {there}")
        is_number = isinstance(units, int | float) and not isinstance(units, bool)
        if not (is_number and finite(units) and units >= 0):
            raise errors.InvalidMessage(f"costs {name}={shown(units)} must be a finite number of units, 0 or more")
    return dict(costs)


def check_keys(keys: object) -> Mapping[str, str]:
    """Return the keys; raise `InvalidMessage` unless they are texts by name."""
    if not isinstance(keys, Mapping):
        raise errors.InvalidMessage(f"keys {shown(keys)} must be texts by name, such as account: a7")
    if len(keys) > MAX_KEYS:
        raise errors.InvalidMessage(f"{len(keys)} keys are too many; give at most {MAX_KEYS}")
    for name, value in keys.items():
        if name == TENANT:
            raise errors.InvalidMessage(f"keys name {TENANT!r}, which is a field of its own; submit it as tenant")
        for what, text in (("name", name), ("value", value)):
            try:
                values.check_label(what, text)
            except errors.InvalidPool as exc:
                raise errors.InvalidMessage(f"keys: {exc}") from None
    return keys


def check_carried(keys: Mapping[str, str], costs: Costs) -> None:
    """Raise `InvalidMessage` unless `submit` would take the keys and costs of a message that anybody may have written.

    A key that the database cannot have would stop the saves of all keys, and a negative cost would make room.
    """
    check_keys(keys)
    check_costs(costs, costs)


def check_zone(zone: object) -> None:
    """Raise `InvalidMessage` unless it is the name of a time zone."""
    try:
        if not isinstance(zone, str):
            raise errors.InvalidPool(f"zone {shown(zone)} is of type {type(zone).__name__}; give an IANA name")
        values.check_zone(zone)
    except errors.InvalidPool as exc:
        raise errors.InvalidMessage(str(exc)) from None


def check_reply_to(topic: object) -> None:
    """Raise `InvalidMessage` unless it can be the name of a topic."""
    try:
        validate_name(topic)  # type: ignore[arg-type]
    except errors.InvalidTopic as exc:
        raise errors.InvalidMessage(f"reply_to: {exc}") from None


def check_ids(ids: object) -> None:
    """Raise `InvalidMessage` unless all can be the ids of tasks."""
    assert isinstance(ids, tuple)
    for each in ids:
        try:
            fits = isinstance(each, str) and len(each.encode()) > 0 and "\0" not in each
        except UnicodeEncodeError:
            fits = False
        if not fits:
            raise errors.InvalidMessage(f"task id {shown(each)} is not that of a task; give the one of its receipt")
