"""From recorded events to columns: the part of recording that runs on the writing thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from emq.trail import schema

WIDTH: Final = len(schema.ROW)


class Batch(NamedTuple):
    """One publish (or merge) of many messages, kept as it came; made into rows by the thread."""

    event: str
    topic: str
    group: int
    ids: Sequence[str]
    now_us: int
    priority: int | None = None
    offsets: Sequence[int] | None = None
    keys: Sequence[str | None] | None = None
    published_us: int | None = None
    due_ms: Sequence[int] | None = None


class Chunk(NamedTuple):
    """Events on their way to the thread; `values` holds them one after the other, each `WIDTH` values long."""

    values: list[Any]
    batches: list[Batch]
    rows: int


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


def _halved(batch: Batch) -> list[Batch]:
    middle = len(batch.ids) // 2
    parts = []
    for span in (slice(middle), slice(middle, None)):
        each: dict[str, Any] = {
            field: None if (all_ := getattr(batch, field)) is None else all_[span] for _, field in _EACH
        }
        parts.append(batch._replace(ids=batch.ids[span], **each))
    return parts


_SAME = ("event", "topic", "group", "priority", "published_us")
"""Columns that are the same throughout a batch, and called as its fields are."""
_EACH = (("offset", "offsets"), ("key", "keys"), ("due_ms", "due_ms"))
"""Columns that have a value for each message, or none for any, and the batch's fields."""


def _batched(source: str, batches: list[Batch]) -> Any:
    names = ("id", "time_us", *_SAME, *(column for column, _ in _EACH))
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for batch in batches:
        n = len(batch.ids)
        columns["id"] += batch.ids
        columns["time_us"] += [batch.now_us] * n
        for name in _SAME:
            columns[name] += [getattr(batch, name)] * n
        for name, field in _EACH:
            values = getattr(batch, field)
            columns[name] += [None] * n if values is None else values
    return schema.table(source, columns, len(columns["id"]))
