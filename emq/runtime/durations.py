"""Spans of time as people read them."""

from __future__ import annotations

import re

SPANS = "90s, 15m, 2h, 7d"
"""Examples for texts that say how a span is written."""

REMEDY = f"give seconds, or a text such as {SPANS}"

IN_SECONDS = re.compile(r"(?<!_per)_s$|\bdelay_levels\b", re.IGNORECASE)
"""In the names of options and settings that are spans in seconds."""

_SPAN = re.compile(r"(\d+(?:\.\d+)?) ?(ms|s|min|m|h|d)", re.ASCII)
_WRITTEN = {"ms": 0.001, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_UNITS = ((1e-3, "us", 1e-6), (1.0, "ms", 1e-3), (120.0, "s", 1.0), (7200.0, "min", 60.0), (172_800.0, "h", 3600.0))
"""Each unit: the bound in seconds below which it is used, its name, and its seconds."""


def span_s(text: str) -> float | None:
    """Return the seconds of a span such as 250ms, 90s, 15m, 1.5h, 7d; None if the text is not a span."""
    found = _SPAN.fullmatch(text)
    return float(found[1]) * _WRITTEN[found[2]] if found else None


def in_seconds(name: str, text: str) -> float | str:
    """Return the seconds of a span that was given for this name; the text itself if either is something else."""
    return text if not IN_SECONDS.search(name) or (found := span_s(text)) is None else found


def brief(seconds: float = 0.0, *, ms: float = 0.0, us: float = 0.0) -> str:
    """Return a span in three digits or so: 250 us, 25 ms, 3.5 s, 12 min, 3.5 h, 2 d; below a microsecond `0 s`."""
    seconds += ms / 1e3 + us / 1e6
    if seconds < 1e-6:
        return "0 s"
    unit, size_s = next(((unit, size_s) for limit_s, unit, size_s in _UNITS if seconds < limit_s), ("d", 86_400.0))
    value = seconds / size_s
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
