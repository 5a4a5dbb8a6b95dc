"""Pools as TOML or JSON files.

A file has the fields of `emq_scheduling.model.Pool`. Two things are written shorter there than in the model: `takes` of
a resource may be a list of types, if none of them has costs of its own there; and TOML, which has no null, says "none".
"""

from __future__ import annotations

from typing import Any

import msgspec
import tomli_w

from emq.runtime import documents, errors
from emq.runtime.inputs import shown
from emq_scheduling.model import Calendar, KeyLimit, Pool, Resource, TaskType, Tenant
from emq_scheduling.pools import rules, values

NONE = "none"
_TABLES: dict[str, tuple[str, type[msgspec.Struct]]] = {
    "types": ("type", TaskType),
    "resources": ("resource", Resource),
    "calendars": ("calendar", Calendar),
    "tenants": ("tenant", Tenant),
    "limits": ("limit", KeyLimit),
}
_OPTIONAL = {
    "types": ("near_priority", "longest_wait_s", "ttl_s", "timeout_s", "beats_within_s"),
    "resources": ("parent", "calendar"),
}


def dump(pool: Pool, fmt: str = "toml") -> str:
    """Return the pool as text; values at their defaults are left out.

    Raises:
        ValueError: `fmt` is neither "toml" nor "json".
    """
    document = msgspec.to_builtins(pool)
    for resource in document.get("resources", {}).values():
        takes = resource.get("takes", {})
        if takes and not any(takes.values()):
            resource["takes"] = list(takes)
    if fmt == "json":
        return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
    if fmt != "toml":
        raise ValueError(f"format {fmt!r} is not known; choose toml or json")
    return tomli_w.dumps(_without_nulls(document))


def load(text: str, fmt: str = "toml", source: str = "the pool") -> Pool:
    """Return the pool in a text, which has passed `rules.check`.

    Args:
        source: the text's name in errors if it has no name of a pool, such as its file's name.

    Raises:
        InvalidPool: the text cannot be read, or a key or value in it is wrong; the error names the place.
        ValueError: `fmt` is neither "toml" nor "json".
    """
    if fmt not in ("toml", "json"):
        raise ValueError(f"format {fmt!r} is not known; choose toml or json")
    document = documents.parsed(text, fmt, source, errors.InvalidPool)
    name = document.get("name") if isinstance(document, dict) else None
    if isinstance(name, str) and len(name) <= values.MAX_NAME_BYTES:
        source = f"pool {name!r}"
    return read(document, source)


def read(document: object, source: str = "the pool") -> Pool:
    """Return the values of a file, or of a body, as a pool that has passed `rules.check`. Raises `InvalidPool`."""
    return converted(_expanded(document), source)


def converted(document: object, source: str = "the pool") -> Pool:
    """Return plain values as a pool that has passed `rules.check`. Raises `InvalidPool`."""
    try:
        pool = documents.converted(document, Pool, source, errors.InvalidPool)
    except errors.InvalidPool:
        _find_wrong_entry(document, source)
        raise
    rules.check(pool)
    return pool


def checked(pool: Pool) -> Pool:
    """Return a pool that somebody has put together, with every value of its type. Raises `InvalidPool`."""
    try:
        plain = msgspec.to_builtins(pool)
    except (TypeError, RecursionError, OverflowError) as exc:
        raise errors.InvalidPool(f"the pool holds a value of a wrong type: {exc}") from None
    return converted(plain)


def _find_wrong_entry(document: object, source: str) -> None:
    """Raise `InvalidPool` for the first wrong entry of a table, with its name, which an error for all lacks."""
    for table, (what, kind) in _TABLES.items():
        entries = document.get(table) if isinstance(document, dict) else None
        for name, entry in entries.items() if isinstance(entries, dict) else ():
            documents.converted(entry, kind, f"{source}: {what} {shown(name)}", errors.InvalidPool)


def _expanded(document: object) -> object:
    """Return a document with its short forms written out as in the model; wrong values stay as they are."""
    if not isinstance(document, dict):
        return document
    made: dict[str, Any] = dict(document)
    for table in _OPTIONAL:
        if isinstance(made.get(table), dict):
            made[table] = {name: expanded_entry(table, each) for name, each in made[table].items()}
    return made


def expanded_entry(table: str, each: object) -> object:
    """Return an entry of a table, such as "resources", with its short forms written out as in the model."""
    if not isinstance(each, dict):
        return each
    optional = _OPTIONAL.get(table, ())
    entry = {key: None if key in optional and value == NONE else value for key, value in each.items()}
    takes = entry.get("takes")
    if isinstance(takes, list) and all(isinstance(kind, str) for kind in takes):
        entry["takes"] = {kind: {} for kind in takes}
    return entry


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nulls(each) for each in value]
    return NONE if value is None else value
