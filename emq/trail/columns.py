"""From recorded events to columns: the part of recording that runs on the writing thread."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from emq.trail import events, schema

WIDTH: Final = len(schema.ROW)


class Chunk(NamedTuple):
    """Events on their way to the thread.

    Attributes:
        values: rows one after the other, each `WIDTH` values long.
        batches: publishes, kept as they came.
        rows: number of all messages and other events.
    """

    values: list[Any]
    batches: list[events.Batch]
    rows: int


_OF_MESSAGE: Final = frozenset({"topic", "group", "priority", "offset", "id", "key", "attempt"})
"""Columns that a failure takes from its message."""


def row(event: events.Record) -> list[Any]:
    """The values of one event, in the order of `schema.ROW`; columns that it does not have are None."""
    message = getattr(event, "message", event)
    return [getattr(message if name in _OF_MESSAGE else event, name, None) for name in schema.ROW]


def tables(source: str, chunk: Chunk) -> list[Any]:
    """The columns of a chunk."""
    found = []
    if chunk.values:
        columns = {name: chunk.values[i::WIDTH] for i, name in enumerate(schema.ROW)}
        found.append(schema.table(source, columns, len(chunk.values) // WIDTH))
    if chunk.batches:
        found.append(_batched(source, chunk.batches))
    return found


def halves(chunk: Chunk) -> list[Chunk]:
    """A chunk of several events as two."""
    if chunk.values and chunk.batches:
        rows = len(chunk.values) // WIDTH
        return [Chunk(chunk.values, [], rows), Chunk([], chunk.batches, chunk.rows - rows)]
    if chunk.values:
        middle = chunk.rows // 2
        values = chunk.values
        return [Chunk(values[: middle * WIDTH], [], middle), Chunk(values[middle * WIDTH :], [], chunk.rows - middle)]
    if len(chunk.batches) > 1:
        middle = len(chunk.batches) // 2
        parts = [chunk.batches[:middle], chunk.batches[middle:]]
    else:
        parts = [[part] for part in _halved(chunk.batches[0])]
    return [Chunk([], part, sum(len(batch.ids) for batch in part)) for part in parts]


def _halved(batch: events.Batch) -> list[events.Batch]:
    middle = len(batch.ids) // 2
    parts = []
    for span in (slice(middle), slice(middle, None)):
        each = {field: all_[span] for _, field in _EACH if (all_ := getattr(batch, field, None)) is not None}
        parts.append(msgspec.structs.replace(batch, ids=batch.ids[span], **each))
    return parts


_SAME = ("event", "time_us", "topic", "group", "priority", "published_us")
"""Columns that are the same throughout a batch, and called as its fields are; None where it lacks the field."""
_EACH = (("offset", "offsets"), ("key", "keys"), ("due_ms", "due_ms"))
"""Columns that have a value for each message, or none for any, and the batch's fields."""


def _batched(source: str, batches: list[events.Batch]) -> Any:
    names = ("id", *_SAME, *(column for column, _ in _EACH))
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for batch in batches:
        n = len(batch.ids)
        columns["id"] += batch.ids
        for name in _SAME:
            columns[name] += [getattr(batch, name, None)] * n
        for name, field in _EACH:
            values = getattr(batch, field, None)
            columns[name] += [None] * n if values is None else values
    return schema.table(source, columns, len(columns["id"]))
