"""The text format of Prometheus, version 0.0.4.

EMQ writes the format itself: the library prometheus_client takes 30 ms for the histograms of 200 handlers, in which no
message would start. `emq.observe.metrics.collector` is for programs that use the library.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from emq.observe.metrics.families import Family, Histogram, Labels

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

PIECE = 300
"""Lines of one piece: less than half a millisecond of work."""


def pieces(families: Iterable[Family]) -> Iterator[str]:
    """Yield the page in pieces of about `PIECE` lines; the caller may let other tasks run between them."""
    lines: list[str] = []
    for family in families:
        told = family.help.replace("\\", "\\\\").replace("\n", "\\n")
        lines += (f"# HELP {family.name} {told}\n", f"# TYPE {family.name} {family.kind}\n")
        for labels, value in family.values:
            if isinstance(value, Histogram):
                lines += _histogram(family, labels, value)
            else:
                lines.append(f"{family.name}{_labels(labels)} {number(value)}\n")
            if len(lines) >= PIECE:
                yield "".join(lines)
                lines.clear()
    yield "".join(lines)


def number(value: float) -> str:
    """Return a value as the format wants it: whole numbers without a point, and its own words for infinity."""
    if isinstance(value, int):
        return str(int(value))  # also of True and False
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if math.isnan(value):
        return "NaN"
    return repr(value)


def _histogram(family: Family, labels: Labels, value: Histogram) -> Iterator[str]:
    before = _labels(labels)[:-1] + "," if labels else "{"
    for bound, below in value.buckets(family.sizes):
        yield f'{family.name}_bucket{before}le="{number(bound)}"}} {below}\n'
    yield f'{family.name}_bucket{before}le="+Inf"}} {value.times}\n'
    yield f"{family.name}_sum{_labels(labels)} {number(value.total_us / 1e6)}\n"
    yield f"{family.name}_count{_labels(labels)} {value.times}\n"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join([f'{name}="{_value(value)}"' for name, value in labels]) + "}"


def _value(text: str) -> str:
    return encodable(text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n"))


def encodable(text: str) -> str:
    """Return the text of a label without lone surrogates, which would fail the whole page."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
