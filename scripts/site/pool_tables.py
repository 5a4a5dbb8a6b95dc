"""The tables of a pool's file, from the docstrings and defaults of `emq_scheduling.model`."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterator

import msgspec

from emq.topics.options import in_words
from emq_cli.topic_options import written
from emq_scheduling.model import Calendar, Hours, KeyLimit, Limit, Pool, Resource, TaskType, Tenant

TABLES: dict[str, type[msgspec.Struct]] = {
    "The pool": Pool,
    "resources.NAME": Resource,
    "limits of a resource": Limit,
    "types.NAME": TaskType,
    "calendars.NAME": Calendar,
    "hours of a calendar or a type": Hours,
    "tenants.NAME": Tenant,
    "limits.NAME": KeyLimit,
}
_FIELD = re.compile(r"^    (\w+(?:, \w+)*): (.*)$")


def markdown(cell: Callable[[str], str]) -> str:
    """Return a heading and a table for each part of the file.

    Args:
        cell: makes a text fit for a cell.
    """
    parts = []
    for title, struct in TABLES.items():
        first = inspect.cleandoc(struct.__doc__ or "").partition("\n\n")[0]
        heading = f"`{title}`" if "." in title else title
        rows = [f"| `{name}` | {kind} | {default} | {cell(text)} |" for name, kind, default, text in _rows(struct)]
        head = ["| field | | default | |", "|---|---|---|---|"]
        parts.append("\n".join([f"### {heading}", "", cell(first), "", *head, *rows, ""]))
    return "\n".join(parts)


def _rows(struct: type[msgspec.Struct]) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, kind, default and meaning of each field. Raises `KeyError` for one that the docstring leaves out."""
    meanings = meanings_of(struct)
    hints = typing.get_type_hints(struct)
    for field in msgspec.structs.fields(struct):
        default = "required"
        if field.default is not msgspec.NODEFAULT:
            default = f"`{written(field.default)}`" if field.default not in ("", ()) else "empty"
        elif field.default_factory is not msgspec.NODEFAULT:
            default = "empty"
        yield field.name, _kind(hints[field.name]), default, meanings[field.name]


def _kind(hint: object) -> str:
    inner = [each for each in typing.get_args(hint) if isinstance(each, type) and issubclass(each, msgspec.Struct)]
    if inner:
        return "tables by name" if typing.get_origin(hint) is dict else "list of tables"
    if typing.get_origin(hint) is dict and typing.get_origin(typing.get_args(hint)[1]) is dict:
        return "names with costs, or a list of names"
    return in_words(hint)


def meanings_of(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Return the meaning of each field, as the docstring of the struct tells it."""
    found: dict[str, str] = {}
    names: list[str] = []
    _, _, attributes = inspect.cleandoc(struct.__doc__ or "").partition("Attributes:\n")
    for line in attributes.splitlines():
        if match := _FIELD.match(line):
            names = match[1].split(", ")
            found |= dict.fromkeys(names, match[2])
        elif names and line.strip():
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
    return found
