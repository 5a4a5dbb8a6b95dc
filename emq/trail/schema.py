"""The columns of the trail: one flat table of events, plain types only, so that any Parquet reader understands it.

| column | type | meaning |
|---|---|---|
| event | string | what happened; one of the names in `emq.trail.events` |
| time_us | int64 | when, microseconds since the epoch by the source's clock; caps are judged by that of a start |
| source | string | id of the host or producer that recorded it |
| topic | string | topic |
| group | int32 | index of the group in the topic |
| priority | int8 | index of the priority in the topic, 0 is the highest; null for merged, owned and released |
| offset | int64 | place in the queue; -1 in a lane or slot; first of a range (skipped, dropped, lost); else null |
| until | int64 | end of the range, exclusive (skipped, dropped, lost); when it expires, us, or null (started, dead) |
| id | string | message id; null where the event is not about one message; sorted topics repeat ids |
| key | string | message key, null for none; given with published, started, settled, retried, returned, dead |
| attempt | int32 | 1 for the first delivery (started, settled, retried, returned, dead); else null |
| epoch | int64 | fencing number of the ownership (started, owned, released); else null |
| published_us | int64 | when the publish began, microseconds by the producer's clock (published, merged, started) |
| ready_us | int64 | when it was ready to start (`Message.ready_us`), us since the epoch by the host's clock (started) |
| due_ms | int64 | when it is due, milliseconds since the epoch (retried; published, if it was delayed) |
| reason | string | why (retried, returned, dead, dropped) |

In a sorted topic an id follows from the contents (`emq.storage.message.slot_id`), so the same id may be published,
merged, settled and published again. When a message leaves its slot to be tried again from its lane, its id gets a
suffix: `~` and a unique text. The event `retried` or `dead` of the message is the first with this suffix.
`emq.trail.segments.Header` explains the file metadata of a segment. A change that an existing reader would misread
raises `VERSION`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]

VERSION: Final = 1

SCHEMA: Final = pa.schema(
    [
        ("event", pa.string()),
        ("time_us", pa.int64()),
        ("source", pa.string()),
        ("topic", pa.string()),
        ("group", pa.int32()),
        ("priority", pa.int8()),
        ("offset", pa.int64()),
        ("until", pa.int64()),
        ("id", pa.string()),
        ("key", pa.string()),
        ("attempt", pa.int32()),
        ("epoch", pa.int64()),
        ("published_us", pa.int64()),
        ("ready_us", pa.int64()),
        ("due_ms", pa.int64()),
        ("reason", pa.string()),
    ]
)

REPETITIVE: Final = ("event", "source", "topic", "group", "priority", "attempt", "epoch", "key", "reason")
"""Columns of few distinct values, which a segment stores dictionary-encoded."""

ROW: Final = tuple(name for name in SCHEMA.names if name != "source")
"""Columns of one recorded event, in order; the source is missing here, because it is the same for a whole segment."""


def table(source: str, columns: Mapping[str, Sequence[Any]], rows: int) -> Any:
    """Return a table of the trail's schema, made from Python sequences; columns not given are null.

    Raises:
        ValueError, TypeError, OverflowError: a value does not fit its column (such as a text that is not UTF-8).
    """
    arrays = [
        pa.repeat(source, rows)
        if field.name == "source"
        else pa.array(columns[field.name], field.type)
        if field.name in columns
        else pa.nulls(rows, field.type)
        for field in SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)
