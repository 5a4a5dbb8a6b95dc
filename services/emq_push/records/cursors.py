"""Cursors: the begin of the next page of a list, as a text that callers return unread."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
import sqlalchemy as sa

T = TypeVar("T")

Place = tuple[int | str, ...]
"""The values of the columns by which a list is sorted, of the last row of a page."""

MOST = 500
"""Most rows on a page."""

_decoder = msgspec.json.Decoder(tuple[int | str, ...])


class InvalidCursor(ValueError):
    """The text is not a cursor of this list. Begin the list again without one."""


class Page(NamedTuple, Generic[T]):
    """Attributes:
    rows: at most as many as asked for.
    next: the cursor of the next page; empty if this page is the last one.
    """

    rows: Sequence[T]
    next: str


def encode(place: Place) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


def decode(text: str, *types: type) -> Place:
    """Return the place that a cursor names.

    Args:
        types: of the place's values, `int` or `str` each.

    Raises:
        InvalidCursor: the text is not a cursor with values of these types.
    """
    try:
        found = _decoder.decode(base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True))
    except (ValueError, msgspec.DecodeError):
        found = ()
    if [type(value) for value in found] != list(types) or any(
        isinstance(value, int) and not -(1 << 62) < value < 1 << 62 for value in found
    ):
        raise InvalidCursor("the cursor is not one of this list; begin again without it")
    return found


def after(columns: Sequence[sa.ColumnElement[int] | sa.ColumnElement[str]], place: Place) -> sa.ColumnElement[bool]:
    """Return the condition for rows after a place; all columns ascend."""
    return sa.tuple_(*columns) > sa.tuple_(*place)


def page(rows: Sequence[T], limit: int, place: Callable[[T], Place]) -> Page[T]:
    """Return a page of rows; `rows` was read with limit + 1."""
    if len(rows) <= limit:
        return Page(rows, "")
    kept = rows[:limit]
    return Page(kept, encode(place(kept[-1])))


def read(
    connection: sa.Connection,
    query: sa.Select[Any] | Sequence[sa.Select[Any]],
    columns: Sequence[sa.Column[Any]],
    made: Callable[[Any], T],
    limit: int,
    cursor: str,
    *,
    newest_first: bool = False,
    of: str = "",
) -> Page[T]:
    """Return a page of the rows of a query in the order of some of its columns.

    Args:
        query: several queries of the same columns give one list, each along an index of its own.
        made: makes an entry of a row.
        newest_first: all columns descend.
        of: the list and its filters, for which alone its cursors are good; empty for cursors of any.

    Raises:
        InvalidCursor: the cursor is not one of this list.
    """
    parts = [query] if isinstance(query, sa.Select) else query
    if cursor:
        types = [c.type.python_type for c in columns]
        place = decode_marked(of, cursor, *types) if of else decode(cursor, *types)
        beyond = sa.tuple_(*columns) < sa.tuple_(*place) if newest_first else after(columns, place)
        parts = [part.where(beyond) for part in parts]
    order = [c.desc() if newest_first else c.asc() for c in columns]
    parts = [part.order_by(*order).limit(limit + 1) for part in parts]
    rows = [row for part in parts for row in connection.execute(part)]
    if len(parts) > 1:
        rows.sort(key=lambda row: tuple(row._mapping[c] for c in columns), reverse=newest_first)
    marks = (mark(of),) if of else ()
    found = page(rows[: limit + 1], limit, lambda row: (*marks, *(row._mapping[c] for c in columns)))
    return Page([made(row) for row in found.rows], found.next)


def mark(of: str) -> str:
    """Return a short text that stands for a list and its filters; the first value in the cursors of such a list."""
    return hashlib.blake2b(of.encode(), digest_size=6).hexdigest()


def decode_marked(of: str, text: str, *types: type) -> Place:
    """As `decode`, for the cursors of one list with one filter; returns the place without its mark.

    Args:
        of: the list and its filters, as for `mark`.

    Raises:
        InvalidCursor: the text is not a cursor of this list with these filters.
    """
    found = decode(text, str, *types)
    if found[0] != mark(of):
        raise InvalidCursor("the cursor belongs to another list or to other filters; begin again without it")
    return found[1:]
