"""The columns of all reads and writes."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from emq.runtime import errors
from emq_spark.source import options as so

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql.types import StructType

_DDL = {
    so.MESSAGES: "topic string, group int, priority string, offset bigint, id string, key string, payload binary, "
    "headers map<string,string>, published timestamp, expires timestamp",
    so.CATALOG: "topic string, kind string, qps double, group_qps double, priorities array<string>, state string, "
    "active_groups int, groups int, options string",
    so.OFFSETS: "topic string, group int, priority string, epoch bigint, watermark bigint, head bigint, tail bigint, "
    "unfinished bigint, finished array<struct<begin:bigint,end:bigint>>",
    so.LAG: "topic string, priority string, unfinished bigint, ready bigint, delayed bigint, claimed bigint, "
    "dead bigint",
    so.DEAD: "topic string, group int, priority string, id string, payload binary, attempts int, reason string, "
    "died timestamp, history array<struct<at:timestamp,reason:string>>",
}
COLUMNS = {what: dict(column.split() for column in ddl.split(", ")) for what, ddl in _DDL.items()}
"""The columns of each kind of read, each with its type in Spark's notation.

messages: a row for each message in the queues, finished or not, until it is trimmed. `published` is by the producer's
clock. If no producer of EMQ made a body, `payload` is the whole body, and the other columns from the body are null.
catalog: a row for each topic; `options` is JSON.
offsets: a row for each queue; `finished` are half-open ranges above the watermark, by the last checkpoint.
lag: for each log topic and priority, a row with the messages that are unfinished by the last checkpoint. Also, for
each topic, a row without priority: messages that wait in lanes and slots (`ready`, `delayed`), are `claimed` from
them, or are `dead`.
dead: a row for each dead letter.
"""

WRITABLE = {
    "topic": ("string",),
    "payload": ("binary", "string"),
    "key": ("string",),
    "priority": ("string",),
    "headers": ("map<string,string>",),
    "at": ("timestamp",),
    "ttl_s": ("double", "float", "int", "bigint"),
    "id": ("string",),
}
"""The columns that a write takes, with their types; all but `payload` may be missing or null.

`at` is the earliest time of the start. `id` is the caller's own message id; the default is made of run, partition and
row.
"""


def chosen(options: so.Options) -> str:
    """Return the read's schema as Spark's DDL: all columns of its kind, or those that the option `columns` names."""
    columns = COLUMNS[options.what]
    names = options.columns or tuple(columns)
    for name in names:
        _check_name(options.what, name, columns)
    if len(set(names)) < len(names):
        raise errors.InvalidSettings(f"option columns {','.join(names)!r} repeats a name; give each once")
    return ", ".join(f"`{name}` {columns[name]}" for name in names)


def check_read(what: str, schema: StructType) -> None:
    """Raise `InvalidSettings` unless `schema`, the caller's own, takes its columns from those of `what`."""
    columns = COLUMNS[what]
    for field in schema.fields:
        _check_name(what, field.name, columns)
        right, given = columns[field.name], field.dataType.simpleString()
        if given != right:
            raise errors.InvalidSettings(f"column {field.name!r} of {what!r} is {right}, not {given}")


def check_write(schema: StructType, topic: str) -> None:
    """Raise `InvalidSettings` unless rows of `schema` can be published; `topic` is the option's."""
    names = set(schema.fieldNames())
    for field in schema.fields:
        if field.name not in WRITABLE:
            raise errors.InvalidSettings(
                f"column {field.name!r} cannot be published; the columns are {', '.join(WRITABLE)}: select and rename"
            )
        types = WRITABLE[field.name]
        if field.dataType.simpleString() not in types:
            raise errors.InvalidSettings(
                f"column {field.name!r} is {field.dataType.simpleString()} and must be {' or '.join(types)}; cast it"
            )
    if "payload" not in names:
        raise errors.InvalidSettings("there is no column 'payload', which is what gets published; select one")
    if "topic" not in names and not topic:
        raise errors.InvalidSettings("there is neither a column 'topic' nor the option topic; give one of them")


def _check_name(what: str, name: str, columns: Collection[str]) -> None:
    if name not in columns:
        raise errors.InvalidSettings(f"{what!r} has no column {name!r}; its columns are {', '.join(columns)}")


def arrow(schema: StructType) -> pa.Schema:
    """Return the schema that Spark expects of record batches."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
