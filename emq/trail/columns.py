"""Turn recorded events into columns; the writing thread of a trail does this."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from emq.trail import events, schema

WIDTH: Final = len(schema.ROW)


class Chunk(NamedTuple):
    """Events on their way to the writing thread.

    Attributes:
        values: the values of all rows one after the other, `WIDTH` for each row.
        batches: publishes, as they were recorded.
        rows: number of rows: one for each message of a batch and each other event.
    """

    values: list[Any]
    batches: list[events.Batch]
    rows: int


_OF_MESSAGE: Final = frozenset({"topic", "group", "priority", "offset", "id", "key", "attempt"})
"""Columns that a failure takes from its message."""


def row(event: events.Record) -> list[Any]:
    """Return the values of one event, in the order of `schema.ROW`; None for columns that the event does not have."""
    message = getattr(event, "message", event)
    return [getattr(message if name in _OF_MESSAGE else event, name, None) for name in schema.ROW]


def tables(source: str, chunk: Chunk) -> list[Any]:
    """Return the events of a chunk as tables of the trail's schema, at most two."""
    found = []
    if chunk.values:
        columns = {name: chunk.values[i::WIDTH] for i, name in enumerate(schema.ROW)}
        found.append(schema.table(source, columns, len(chunk.values) // WIDTH))
    if chunk.batches:
        found.append(_batched(source, chunk.batches))
    return found


def halves(chunk: Chunk) -> list[Chunk]:
    """Return a chunk of several events as two chunks."""
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
"""Columns with one value for a whole batch, named like its fields; None where a batch lacks the field."""
_EACH = (("offset", "offsets"), ("key", "keys"), ("due_ms", "due_ms"))
"""Columns with a value for each message of a batch, or without any value; with the names of the batch's fields."""


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
