"""Charts as SVG text, drawn without a library, so that a report is one file without further resources."""

from __future__ import annotations

import html
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from emq.durations import brief
from spark.audit.owners import Pause

Path = Sequence[tuple[float, float]]


class ChartLine(NamedTuple):
    """A line of a chart; `css` names its colour, `filled` shades what is below it."""

    values: Sequence[float]
    css: str
    filled: bool = False


def number(value: float) -> str:
    """Format a number shortly enough for an axis, such as 1.2k or 3.4M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def nice(value: float) -> float:
    """Return the next round number: 1, 2, 2.5 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * step for step in (1, 2, 2.5, 5, 10) if power * step >= value * 0.999)


def lines(
    chart: Sequence[ChartLine],
    width: int,
    height: int,
    *,
    cap: float = 0.0,
    axis: bool = True,
    ends: tuple[str, str] = ("", ""),
) -> str:
    """Lines over time, from 0 up.

    Args:
        cap: where a dashed line is drawn; 0 for none.
        axis: with numbers; without, a small picture.
        ends: texts at both ends of the time.
    """
    left, bottom, top = (46, 20, 8) if axis else (0, 2, 4)
    highest = max([cap, *(v for line in chart for v in line.values)], default=0.0)
    most = nice(highest) if axis else max(highest * 1.08, 1e-9)
    w, h = width - left - 6, height - top - bottom

    def place(values: Sequence[float]) -> Path:
        step = w / max(1, len(values) - 1)
        return [(left + i * step, top + h - h * v / most) for i, v in enumerate(values)]

    parts = []
    for share in (0.0, 0.5, 1.0) if axis else ():
        y = top + h - h * share
        parts.append(f'<line class="grid" x1="{left}" x2="{width - 6}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="tick" x="{left - 6}" y="{y + 3.5:.1f}" text-anchor="end">{number(most * share)}</text>'
        )
    for line in chart:
        points = place(line.values)
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        if line.filled and points:
            base = f"{points[-1][0]:.1f},{top + h} {points[0][0]:.1f},{top + h}"
            parts.append(f'<polygon class="{line.css} area" points="{path} {base}"/>')
        parts.append(f'<polyline class="{line.css} line" points="{path}"/>')
    if cap:
        y = top + h - h * cap / most
        parts.append(f'<line class="cap" x1="{left}" x2="{width - 6}" y1="{y:.1f}" y2="{y:.1f}"/>')
    return _svg(width, height, [*parts, *_ends(ends, left, width, height)])


def _ends(texts: tuple[str, str], left: int, width: int, height: int) -> Iterator[str]:
    for x, anchor, text in ((left, "start", texts[0]), (width - 6, "end", texts[1])):
        if text:
            yield f'<text class="tick" x="{x}" y="{height - 4}" text-anchor="{anchor}">{html.escape(text)}</text>'


def heat(rows: Sequence[tuple[str, Sequence[float]]], width: int, marked: Sequence[Collection[int]]) -> str:
    """A row of cells for each name, shaded by shares of 0 to 1; `marked` are the places of cells in another colour."""
    left, cell = 150, 16
    parts = []
    for i, (name, shares) in enumerate(rows):
        y = i * cell
        label = html.escape(name if len(name) <= 22 else name[:21] + "…")
        parts.append(f'<text class="name" x="{left - 8}" y="{y + 12}" text-anchor="end">{label}</text>')
        step = (width - left) / max(1, len(shares))
        for j, share in enumerate(shares):
            shade = "over" if j in marked[i] else f"h{min(8, math.ceil(share * 8))}"
            x = left + j * step
            parts.append(f'<rect class="{shade}" x="{x:.1f}" y="{y}" width="{step + 0.3:.1f}" height="{cell - 2}"/>')
    return _svg(width, len(rows) * cell, parts)


def dots(
    pauses: Sequence[Pause], first_us: float, last_us: float, width: int, height: int, *, ends: tuple[str, str]
) -> str:
    """Pauses over time, on a logarithmic scale; those after a crash in another colour. `ends` as for `lines`."""
    left, bottom, top = 46, 20, 8
    w, h = width - left - 6, height - top - bottom
    low, high = 1e4, max([1e6, *(p.gap_us for p in pauses)]) * 1.2
    scale = h / math.log10(high / low)
    parts = []
    for exponent in range(4, math.ceil(math.log10(high)) + 1):
        if (y := top + h - scale * (exponent - 4)) >= top:
            parts.append(f'<line class="grid" x1="{left}" x2="{width - 6}" y1="{y:.1f}" y2="{y:.1f}"/>')
            text = brief(us=10.0**exponent)
            parts.append(f'<text class="tick" x="{left - 6}" y="{y + 3.5:.1f}" text-anchor="end">{text}</text>')
    for pause in pauses:
        x = left + w * (pause.at_us - first_us) / max(1.0, last_us - first_us)
        y = top + h - scale * math.log10(max(low, pause.gap_us) / low)
        css = "good" if pause.clean else "bad"
        title = f"{html.escape(pause.topic)}/{pause.group}: {brief(us=pause.gap_us)}"
        parts.append(f'<circle class="{css}" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{title}</title></circle>')
    return _svg(width, height, [*parts, *_ends(ends, left, width, height)])


def waits(by_priority: Mapping[int, Sequence[tuple[float, int]]], width: int, height: int) -> str:
    """Draw for each priority the share of messages that waited at most a given time, on a logarithmic scale."""
    left, bottom, top = 46, 20, 8
    w, h = width - left - 6, height - top - bottom
    every = [us for found in by_priority.values() for us, _ in found]
    low = 10 ** math.floor(math.log10(min(every, default=1e3)))
    high = 10 ** math.ceil(math.log10(max(every, default=1e6) * 1.19))
    scale = w / math.log10(high / low)
    parts = []
    for share in (0.0, 0.5, 0.99):
        y = top + h - h * share
        parts.append(f'<line class="grid" x1="{left}" x2="{width - 6}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{left - 6}" y="{y + 3.5:.1f}" text-anchor="end">{share:.0%}</text>')
    for exponent in range(round(math.log10(low)), round(math.log10(high)) + 1):
        x = left + scale * (exponent - math.log10(low))
        anchor = "end" if x > width - 20 else "middle"
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{top + h}"/>')
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{height - 4}" text-anchor="{anchor}">{brief(us=10.0**exponent)}</text>'
        )
    for i, found in enumerate(by_priority.values()):
        total, reached = sum(n for _, n in found), 0
        points: list[tuple[float, float]] = [(left + scale * math.log10(found[0][0] / low), top + h)]
        for us, n in found:
            reached += n
            # A bucket holds what waited up to a quarter of a doubling longer.
            points.append((left + scale * math.log10(us * 2**0.25 / low), top + h - h * reached / total))
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline class="p{i % 4} line" points="{path}"/>')
    return _svg(width, height, parts)


def _svg(width: int, height: int, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {width} {height}" role="img">{"".join(parts)}</svg>'
