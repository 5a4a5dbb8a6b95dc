"""The description of a benchmark: its options, its figures and their bounds."""

from __future__ import annotations

import operator
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

_RELATIONS = {">=": operator.ge, "<=": operator.le, "<": operator.lt, "==": operator.eq}


class Figure(NamedTuple):
    name: str
    relation: Literal[">=", "<=", "<", "=="]
    bound: float


@dataclass(frozen=True)
class Benchmark:
    """A benchmark.

    Attributes:
        run: awaits `run(stage, **options)` and returns the figures by name.
        options: (name, default, help) of each command-line option.
        figures: the figures that have a bound.
        stores: the stores for which the benchmark makes sense.
        concerning: returns the options by which a run goes, of all options; the others are not shown with its figures.
        short: the defaults that `--short` has instead, by option; without any there is no `--short`.
    """

    run: Callable[..., Coroutine[Any, Any, dict[str, Any]]]
    options: Sequence[tuple[str, Any, str]] = ()
    figures: Sequence[Figure] = ()
    stores: Sequence[str] = ("redis", "sqlite", "memory", "postgres")
    concerning: Callable[[dict[str, Any]], dict[str, Any]] = dict
    short: Mapping[str, Any] = field(default_factory=dict)


def holds(figure: Figure, value: float) -> bool:
    return bool(_RELATIONS[figure.relation](value, figure.bound))


def percentile(values: Sequence[float], p: float) -> float:
    """Return the value below which `p` percent of `values` lie (nearest rank); 0 if there are no values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * p / 100))] if ordered else 0.0
