"""From recorded events to columns: the part of recording that runs on the writing thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from emq.trail import schema

WIDTH: Final = len(schema.ROW)


class Published(NamedTuple):
    """One publish, kept as it came; made into rows by the thread."""

    topic: str
    group: int
    priority: int
    offsets: Sequence[int] | None
    ids: Sequence[str]
    keys: Sequence[str | None] | None
    published_us: int
    now_us: int


class Chunk(NamedTuple):
    """Events on their way to the thread; `values` holds them one after the other, each `WIDTH` values long."""

    values: list[Any]
    batches: list[Published]
    rows: int


def tables(source: str, chunk: Chunk) -> list[Any]:
    """The columns of a chunk."""
    found = []
    if chunk.values:
        columns = {name: chunk.values[i::WIDTH] for i, name in enumerate(schema.ROW)}
        found.append(schema.table(source, columns, len(chunk.values) // WIDTH))
    if chunk.batches:
        found.append(_published_table(source, chunk.batches))
    return found


def _published_table(source: str, batches: list[Published]) -> Any:
    columns: dict[str, list[Any]] = {
        name: [] for name in ("topic", "group", "priority", "time_us", "published_us", "offset", "id", "key")
    }
    for batch in batches:
        n = len(batch.ids)
        columns["topic"] += [batch.topic] * n
        columns["group"] += [batch.group] * n
        columns["priority"] += [batch.priority] * n
        columns["time_us"] += [batch.now_us] * n
        columns["published_us"] += [batch.published_us] * n
        columns["offset"] += [None] * n if batch.offsets is None else batch.offsets
        columns["id"] += batch.ids
        columns["key"] += [None] * n if batch.keys is None else batch.keys
    rows = len(columns["id"])
    columns["event"] = [schema.PUBLISHED] * rows
    return schema.table(source, columns, rows)
