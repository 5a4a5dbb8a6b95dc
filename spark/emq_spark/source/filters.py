"""Turns Spark's filters into conditions on the rows to read."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MICROSECOND = datetime.timedelta(microseconds=1)


class Range(NamedTuple):
    """Whole numbers in [low, high); a bound of None is no bound."""

    low: int | None = None
    high: int | None = None

    def within(self, other: Range) -> Range:
        lows = [bound for bound in (self.low, other.low) if bound is not None]
        highs = [bound for bound in (self.high, other.high) if bound is not None]
        return Range(max(lows, default=None), min(highs, default=None))

    def admits(self, number: int) -> bool:
        return (self.low is None or number >= self.low) and (self.high is None or number < self.high)

    @property
    def is_all(self) -> bool:
        return self.low is None and self.high is None


ALL = Range()


class Wanted:
    """The rows that a read wants: for some columns the values, for some a range. At first it wants all rows."""

    def __init__(self) -> None:
        self.values: dict[str, frozenset[Any]] = {}
        self.ranges: dict[str, Range] = {}

    def admits(self, **row: Any) -> bool:
        """Return whether a row with these values in these columns may be wanted."""
        for column, value in row.items():
            if column in self.values and value not in self.values[column]:
                return False
            if column in self.ranges and not self.ranges[column].admits(value):
                return False
        return True

    def range(self, column: str) -> Range:
        """Return the range of a column of numbers; times are in microseconds since the epoch."""
        return self.ranges.get(column, ALL)

    def take(self, filters: Iterable[Filter], names: Collection[str], numbers: Collection[str]) -> Sequence[Filter]:
        """Note the filters that the read can apply exactly; return the others, which Spark has to apply.

        Args:
            names: columns of text that are never null; the read wants some of their values.
            numbers: columns of whole numbers or times; the read wants a range of them.
        """
        return [f for f in filters if not self._takes(f, names, numbers)]

    def _takes(self, f: Filter, names: Collection[str], numbers: Collection[str]) -> bool:
        from pyspark.sql import datasource as ds

        if len(getattr(f, "attribute", ())) != 1:  # a field of a struct, or a negation
            return False
        column = f.attribute[0]  # type: ignore[attr-defined]
        if isinstance(f, ds.IsNotNull):
            return column in names
        if isinstance(f, ds.In) and column in names:
            self._only(column, f.value)
        elif isinstance(f, ds.EqualTo | ds.EqualNullSafe) and column in names:
            self._only(column, (f.value,))
        elif column in numbers and (found := _range(f)) is not None:
            self.ranges[column] = self.range(column).within(found)
        else:
            return False
        return True

    def _only(self, column: str, values: Iterable[Any]) -> None:
        wanted = frozenset(values)
        self.values[column] = self.values.get(column, wanted) & wanted


def _range(f: Filter) -> Range | None:
    from pyspark.sql import datasource as ds

    number = _number(getattr(f, "value", None))
    if number is None:
        return None
    ranges: tuple[tuple[type[Filter], Range], ...] = (
        (ds.EqualTo, Range(number, number + 1)),
        (ds.GreaterThan, Range(number + 1, None)),
        (ds.GreaterThanOrEqual, Range(number, None)),
        (ds.LessThan, Range(None, number)),
        (ds.LessThanOrEqual, Range(None, number + 1)),
    )
    return next((found for kind, found in ranges if isinstance(f, kind)), None)


def _number(value: object) -> int | None:
    """Return a whole number, or a time in microseconds since the epoch; None for other values."""
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return (value - EPOCH) // MICROSECOND
    return value if isinstance(value, int) and not isinstance(value, bool) else None
