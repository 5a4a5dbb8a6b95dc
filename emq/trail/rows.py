"""Choosing rows of the trail's table, for those who turn them into records."""

from __future__ import annotations

from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]


def join(left: Any, right: Any) -> Any:
    """`left/right`, null where either is."""
    return pc.binary_join_element_wise(left.cast(pa.string()), right.cast(pa.string()), "/")


def only(table: Any, *events: str) -> Any:
    """The rows of these events."""
    return table.filter(pc.is_in(table["event"], pa.array(events)))


def lists(table: Any, *columns: str) -> list[list[Any]]:
    """Columns as lists of Python values."""
    return [table[name].to_pylist() for name in columns]
