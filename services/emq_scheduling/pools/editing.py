"""Changes of a pool written as text: `field=value`, for one resource, type, tenant or limit by key.

- All: the fields of its struct in `emq_scheduling.model`, such as `weight=2`, `paused=true`, `longest_wait_s=5`. Lists
  have commas, "none" is no value.
- Limits of a resource: `limits.requests=50` (if it has one limit of that name), `limits.requests/minute=50` (also a new
  one), `limits.requests/minute=none` takes it away. Behind the amount may stand the kind, such as
  `limits.requests/minute=600 bucket of 50` (`emq_scheduling.pools.kinds`).
- Types that a resource takes: `takes=code,notice`; costs that differ there: `takes.code.tokens=20`.
- Costs of a type: `costs.tokens=20`; `none` takes the cost away, and it counts 1 again.
- Exceptions of a limit by key: `amounts.acme=20`; `none` takes one away.
- Attributes of a resource: `attributes.url=https://sms.example`; `none` takes one away.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from emq.runtime import documents, durations, errors
from emq.runtime.inputs import alike, shown
from emq_scheduling.model import KeyLimit, Limit, Period, Pool, Resource, TaskType, Tenant
from emq_scheduling.pools import kinds

What = Literal["resource", "type", "tenant", "limit"]

_TABLES: dict[str, tuple[str, type[msgspec.Struct]]] = {
    "resource": ("resources", Resource),
    "type": ("types", TaskType),
    "tenant": ("tenants", Tenant),
    "limit": ("limits", KeyLimit),
}
_NONE = "none"
_WRITTEN = {
    "amounts": "amounts.KEY=AMOUNT",
    "attributes": "attributes.NAME=TEXT",
    "costs": "costs.LIMIT=UNITS",
    "hours": "them in a file, and import it",
}


def changed(pool: Pool, what: What, name: str, pairs: Iterable[str]) -> Pool:
    """Return the pool with an entry changed. A tenant that the pool does not name is added.

    Raises:
        InvalidPool: there is no such entry or field, or a value does not fit. `rules.check` checks whether all values
            go together.
    """
    table, kind = _TABLES[what]
    entries = getattr(pool, table)
    entry = entries.get(name, Tenant() if what == "tenant" else None)
    if entry is None:
        there = f"it has {', '.join(list(entries)[:8])}{', ...' if len(entries) > 8 else ''}" if entries else "none yet"
        raise errors.InvalidPool(f"pool {pool.name!r} has no {what} {shown(name)}{alike(name, entries) or ';'} {there}")
    for pair in pairs:
        key, mark, text = pair.partition("=")
        place = f"pool {pool.name!r}: {what} {name!r}"
        if not mark or not key:
            raise errors.InvalidPool(f"{place}: {shown(pair)} is not a change; write field=value, such as weight=2")
        entry = _set(entry, kind, key.strip(), text.strip(), place)
    return msgspec.structs.replace(pool, **{table: {**entries, name: entry}})


def _set(entry: Any, kind: type[msgspec.Struct], key: str, text: str, place: str) -> Any:
    field, dot, rest = key.partition(".")
    if field not in kind.__struct_fields__:
        known = ", ".join(kind.__struct_fields__)
        raise errors.InvalidPool(
            f"{place}: there is no field {shown(key)}{alike(field, kind.__struct_fields__) or ';'}"
            f" the fields are {known}"
        )
    if field == "limits":
        value: Any = _limits(entry.limits, rest, text, place)
    elif field == "takes" and dot:
        task_type, _, limit = rest.partition(".")
        if task_type not in entry.takes or not limit:
            raise errors.InvalidPool(f"{place}: {key} names no cost; write takes.TYPE.LIMIT=UNITS, of a type it takes")
        value = {**entry.takes, task_type: _cost(entry.takes[task_type], limit, key, text, place)}
    elif field == "takes":
        value = {task_type: entry.takes.get(task_type, {}) for task_type in _list(text)}
    elif field in ("costs", "amounts") and dot:
        value = _cost(getattr(entry, field), rest, key, text, place)
    elif field == "attributes" and rest:
        value = {name: each for name, each in entry.attributes.items() if name != rest}
        value |= {} if text.lower() == _NONE else {rest: text}
    elif field in _WRITTEN:
        raise errors.InvalidPool(f"{place}: {field} cannot be given as one value; write {_WRITTEN[field]}")
    elif dot:
        raise errors.InvalidPool(f"{place}: {field} has no parts; write {field}=value")
    else:
        value = _plain(typing.get_type_hints(kind)[field], key, text, place)
    return msgspec.structs.replace(entry, **{field: value})


def _limits(limits: tuple[Limit, ...], which: str, text: str, place: str) -> tuple[Limit, ...]:
    name, _, per = which.partition("/")
    there = [limit for limit in limits if limit.name == name and per in ("", limit.per)]
    if not name:
        raise errors.InvalidPool(f"{place}: write limits.NAME=AMOUNT or limits.NAME/PERIOD=AMOUNT")
    if per and per not in typing.get_args(Period):
        periods = ", ".join(typing.get_args(Period))
        raise errors.InvalidPool(f"{place}: period {shown(per)} is not one of {periods}")
    if not per and len(there) != 1:
        has = ", ".join(f"limits.{limit.name}/{limit.per}" for limit in there or limits) or "no limits"
        raise errors.InvalidPool(f"{place}: limits.{name} does not name one limit; it has {has}; write NAME/PERIOD")
    if text.lower() == _NONE:
        return tuple(limit for limit in limits if limit not in there)
    written, _, kind = text.partition(" ")
    amount = _plain(float, f"limits.{which}", written, place)
    made = there[0] if there else Limit(name, amount, typing.cast(Period, per))
    made = kinds.with_kind(msgspec.structs.replace(made, amount=amount), kind.strip(), f"{place}: limits.{which}")
    return tuple(made if each in there else each for each in limits) if there else (*limits, made)


def _cost(costs: dict[str, float], limit: str, key: str, text: str, place: str) -> dict[str, float]:
    if text.lower() == _NONE:
        return {name: units for name, units in costs.items() if name != limit}
    return {**costs, limit: _plain(float, key, text, place)}


def _plain(hint: Any, key: str, text: str, place: str) -> Any:
    value: Any = text
    if type(None) in typing.get_args(hint) and text.lower() == _NONE:
        value = None
    elif typing.get_origin(hint) is tuple or ("," in text and _is_list(hint)):
        value = [durations.in_seconds(key, each) for each in _list(text)]
    else:
        value = durations.in_seconds(key, text)
    try:
        return msgspec.convert(value, hint, strict=False)
    except msgspec.ValidationError as exc:
        raise errors.InvalidPool(f"{place}: {key}={shown(text)} does not fit{documents.remedy(exc, hint)}") from None


def _is_list(hint: Any) -> bool:
    """Return whether a value may also be a list."""
    return any(typing.get_origin(each) is tuple for each in typing.get_args(hint))


def _list(text: str) -> list[str]:
    return [] if text.lower() == _NONE else [part.strip() for part in text.split(",") if part.strip()]
