"""Turns the bodies of messages into record batches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from emq.storage import message
from emq_spark.source.filters import ALL, Range
from emq_spark.source.spans import Found, Span

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

Messages = Sequence[message.Message]

_OF_BODY: dict[str, Callable[[Messages], Sequence[Any]]] = {
    "id": lambda messages: [m.id or None for m in messages],
    "key": lambda messages: [m.key for m in messages],
    "payload": lambda messages: [m.payload for m in messages],
    "headers": lambda messages: [m.headers for m in messages],
    "published": lambda messages: [m.published_us or None for m in messages],
    "expires": lambda messages: [m.expires_us or None for m in messages],
}
"""The columns that need decoded bodies, and the function that fills each."""


class RowMaker:
    """Makes record batches of one schema.

    Args:
        schema: a schema with some of the columns of messages, see `emq_spark.source.schema`.
        published: times of publish in microseconds since the epoch; rows published at other times are left out.
    """

    def __init__(self, schema: pa.Schema, published: Range = ALL) -> None:
        self._schema = schema
        self._published = published
        names: Collection[str] = schema.names
        self._decodes = not published.is_all or any(name in _OF_BODY for name in names)

    def batch(self, found: Iterable[Found]) -> pa.RecordBatch:
        """Return the rows of one read. Bodies are decoded only if a column needs them."""
        import pyarrow as pa

        columns: dict[str, list[Any]] = {name: [] for name in self._schema.names}
        for span, offsets, bodies in found:
            messages: Messages = ()
            if self._decodes:
                messages = decoded(bodies)
                offsets, messages = self._in_time(offsets, messages)
            _extend(columns, span, offsets, messages)
        arrays = [pa.array(columns[field.name], field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _in_time(self, offsets: Sequence[int], messages: Messages) -> tuple[Sequence[int], Messages]:
        if self._published.is_all:
            return offsets, messages
        kept = [i for i, m in enumerate(messages) if m.published_us and self._published.admits(m.published_us)]
        return [offsets[i] for i in kept], [messages[i] for i in kept]


def _extend(columns: dict[str, list[Any]], span: Span, offsets: Sequence[int], messages: Messages) -> None:
    name, count = span.name, len(offsets)
    same = {"topic": name.topic, "group": name.group, "priority": name.priority}
    for column, values in columns.items():
        if column in same:
            values += [same[column]] * count
        elif column == "offset":
            values += offsets
        else:
            values += _OF_BODY[column](messages)


def decoded(bodies: Sequence[bytes]) -> Messages:
    """Return the messages; a body that no producer of EMQ made becomes the payload of a message without an id."""
    try:
        return [message.decode(body) for body in bodies]
    except message.UNREADABLE:
        return [_decoded(body) for body in bodies]


def _decoded(body: bytes) -> message.Message:
    try:
        return message.decode(body)
    except message.UNREADABLE:
        return message.Message(uid="", payload=bytes(body))
