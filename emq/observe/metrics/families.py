"""A family of metrics: one name with its meaning, and its values by label."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

Labels: TypeAlias = tuple[tuple[str, str], ...]
"""Names and values of labels."""

Value: TypeAlias = float


class Histogram(NamedTuple):
    """Counts of times by their size, the number of bits of their microseconds; see `emq.groups.deliveries`.

    Attributes:
        counts: one for each size.
        total_us: sum of all times, in microseconds.
    """

    counts: Sequence[int]
    total_us: int

    def buckets(self, sizes: range) -> Iterator[tuple[float, int]]:
        """Yield upper bounds in seconds, each with the number of times below; `sizes` are the bounds to yield.

        A time that equals the bound in whole microseconds counts above it: it was rounded down.
        """
        below = sum(self.counts[: sizes.start])
        for size in sizes:
            below += self.counts[size]
            yield (1 << size) / 1e6, below

    @property
    def times(self) -> int:
        """The number of times counted."""
        return sum(self.counts)


class Family(NamedTuple):
    """Attributes:
    name: begins with `emq_`; that of a counter ends with `_total`.
    kind: its type.
    help: the meaning in one line, with the unit.
    values: the labels and the value of each of its series; the value of a histogram is a `Histogram`.
    sizes: the bounds of a histogram's buckets, in bits of microseconds.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    values: Iterable[tuple[Labels, Value | Histogram]]
    sizes: range = range(0)


def counter(name: str, help: str, value: Value | Mapping[str, Value], label: str = "") -> Family:
    """Return a counter: of one value, or of a value for each text of a label."""
    return Family(name, "counter", help, _series(value, label))


def gauge(name: str, help: str, value: Value | Mapping[str, Value], label: str = "") -> Family:
    """Return a gauge, as `counter`."""
    return Family(name, "gauge", help, _series(value, label))


def _series(value: Value | Mapping[str, Value], label: str) -> list[tuple[Labels, Value]]:
    if isinstance(value, Mapping):
        return [(((label, text),), each) for text, each in value.items()]
    return [((), value)]
