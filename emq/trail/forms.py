"""The form of each event: the columns that it must have, and their ranges.

A checker ignores missing values. So a row without a required value, such as a failure without the time of its next
attempt, would pass without a check. Such rows make the proof void.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from emq.runtime import plurals
from emq.trail import events, schema

COLUMNS: Final = (
    *("event", "time_us", "source", "topic", "group", "priority", "offset", "until", "id", "attempt", "epoch"),
    *("ready_us", "due_ms"),
)
"""Columns that are checked."""

LEAP_US: Final = 100_000
"""Microseconds by which a host may date an event before one that it recorded earlier."""

_ENDS: Final = (events.SETTLED, events.RETRIED, events.RETURNED, events.DEAD)
_DELIVERIES: Final = (events.STARTED, *_ENDS)
_RANGES: Final = (events.SKIPPED, events.DROPPED, events.LOST, events.FORGOTTEN)
_MESSAGES: Final = (
    *_DELIVERIES,
    *(events.PUBLISHED, events.MERGED, events.DOUBTED, events.RECALLED, events.REPLAYED),
)
_OWNERS: Final = (events.OWNED, events.RELEASED)
_ALL: Final = (*_MESSAGES, *_RANGES, *_OWNERS)

_Wrong = Callable[[Any], Any]
"""Takes a table; returns a mask of its wrong rows; null counts as wrong."""


def _below(name: str, least: int) -> _Wrong:
    return lambda table: pc.less(table[name], least)


def _missing(name: str) -> _Wrong:
    return lambda table: pc.is_null(table[name])


def _set_and(wrong: _Wrong, name: str) -> _Wrong:
    """Return a rule that applies to rows whose column is not null."""
    return lambda table: pc.and_(pc.is_valid(table[name]), pc.fill_null(wrong(table), False))


_RULES: Final[tuple[tuple[str, tuple[str, ...], _Wrong], ...]] = (
    ("time_us", _ALL, _missing("time_us")),
    ("topic", _ALL, _missing("topic")),
    ("group", _ALL, _below("group", 0)),
    ("priority", (*_DELIVERIES, *_RANGES, events.PUBLISHED), _below("priority", 0)),
    ("id", _MESSAGES, _missing("id")),
    ("attempt", _DELIVERIES, _below("attempt", 1)),
    ("offset", _DELIVERIES, _below("offset", -1)),
    ("offset", _RANGES, _below("offset", 0)),
    ("offset", (events.PUBLISHED,), _set_and(_below("offset", 0), "offset")),
    ("until", _RANGES, lambda table: pc.less(table["until"], table["offset"])),
    ("epoch", (events.STARTED, *_OWNERS), _missing("epoch")),
    ("due_ms", (events.RETRIED,), _missing("due_ms")),
    (
        "ready_us",
        (events.STARTED,),
        _set_and(lambda table: pc.greater(table["ready_us"], pc.add(table["time_us"], LEAP_US)), "ready_us"),
    ),
)


def wrong_columns(given: Any) -> str | None:
    """Return why a file of these Arrow columns is not a segment; None if it is one. More columns are allowed."""
    for field in schema.SCHEMA:
        i = given.get_field_index(field.name)
        if i < 0:
            return f"its column {field.name!r} is missing, or there twice"
        if given.field(i).type != field.type:
            return f"its column {field.name!r} is of type {given.field(i).type}, not {field.type}"
    return None


def wrong_rows(table: Any) -> str | None:
    """Return a text about the first rule that rows of the table break; None if all rows have the form of their event.

    Args:
        table: at least the columns `COLUMNS`.
    """
    event = table["event"]
    if strange := sorted(set(pc.unique(event).to_pylist()) - set(_ALL), key=str):
        return f"there is no event {strange[0]!r}"
    for column, names, wrong in _RULES:
        mask = pc.and_(pc.is_in(event, pa.array(names)), pc.fill_null(wrong(table), True))
        if count := pc.sum(mask).as_py():
            row = table.filter(mask).slice(0, 1).to_pylist()[0]
            return f"{column} {row[column]} cannot be, in {plurals.count(count, 'row')}, such as one of {row['event']}"
    return None
