"""Charts without a library: SVG for a browser, block characters for a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

COLOURS = ("#c2410c", "#2563eb", "#16a34a", "#7c3aed", "#ca8a04", "#0891b2")
BLOCKS = " ▁▂▃▄▅▆▇█"
LEFT, RIGHT, WIDTH = 132, 24, 1080
Values = Mapping[str, Sequence[float]]


def sparkline(values: Sequence[float], width: int, top: float | None = None) -> str:
    """Return the means of the values in `width` characters; `top` is the value of a full block, else the largest."""
    if not values:
        return ""
    parts = [values[i * len(values) // width : max(i * len(values) // width + 1, (i + 1) * len(values) // width)]
             for i in range(width)]  # fmt: skip
    means = [sum(part) / len(part) for part in parts]
    top = top or max(means) or 1.0
    return "".join(BLOCKS[min(8, math.ceil(8 * min(1.0, mean / top) - 0.05)) if mean > 0 else 0] for mean in means)


class Chart:
    """Panels below each other over the same seconds.

    Args:
        ticks: labels of the time axis, by second.
        marks: spans of time that are shaded in all panels but strips, each with its label.
    """

    def __init__(
        self, title: str, seconds: int, ticks: Mapping[float, str], marks: Sequence[tuple[float, float, str]] = ()
    ) -> None:
        self._seconds = max(1, seconds)
        self._ticks = ticks
        self._marks = marks
        self._parts = [f'<text x="24" y="34" class="title">{escape(title)}</text>']
        self._y = 60.0

    def stacked(self, title: str, series: Values, top: float, line: Sequence[float] = (), above: str = "") -> None:
        """Draw areas on top of each other, and a dashed line; what exceeds `top` is cut off, and named by `above`."""
        self._begin(title, series, 150)
        base = [0.0] * self._seconds
        for colour, values in zip(COLOURS, series.values(), strict=False):
            upper = [low + self._at(values, i) for i, low in enumerate(base)]
            steps = [(i + d, v) for i, v in enumerate(upper) for d in (0, 1)]
            back = [(i + d, v) for i, v in enumerate(base) for d in (0, 1)][::-1]
            points = " ".join(f"{self._x(s):.1f},{self._of(v, 150, top):.1f}" for s, v in [*steps, *back])
            self._parts.append(f'<polygon points="{points}" fill="{colour}" opacity="0.85"/>')
            base = upper
        if line:
            self._polyline([(i + d, v) for i, v in enumerate(line) for d in (0, 1)], 150, top, "#111", 'class="dashed"')
        if above and max(base) > top:
            second = base.index(max(base))
            self._parts.append(f'<text x="{self._x(second) + 16:.1f}" y="{self._y + 12}">{escape(above)}</text>')
        self._axis(150, {0.0: "0", top / 2: f"{top / 2:g}", top: f"{top:g}"}, top)

    def lines(self, title: str, series: Values, targets: Mapping[str, float | None]) -> None:
        """Draw lines on a logarithmic axis from 1 ms to 100 s, with a dashed target each."""
        self._begin(title, series, 150)
        for colour, (name, values) in zip(COLOURS, series.items(), strict=False):
            run: list[tuple[float, float]] = []
            for second, value in [*enumerate(values), (0, math.nan)]:
                if math.isnan(value):
                    self._polyline(run, 150, 5.0, colour, 'stroke-width="2"')
                    run = []
                else:
                    run.append((second + 0.5, _log(value)))
            if (target := targets.get(name)) is not None and target <= 100:
                ends = [(0.0, _log(target)), (float(self._seconds), _log(target))]
                self._polyline(ends, 150, 5.0, colour, 'class="dashed"')
        self._axis(150, {0: "1 ms", 1: "10 ms", 2: "100 ms", 3: "1 s", 4: "10 s", 5: "100 s"}, 5.0)

    def strips(self, title: str, rows: Values, troubles: Sequence[tuple[str, float, float]] = ()) -> None:
        """Draw a strip for each row, darker for values near 1; troubles are framed: row, first and last second."""
        self._begin(title, {}, 18 * len(rows))
        width = (WIDTH - LEFT - RIGHT) / self._seconds
        for number, (name, values) in enumerate(rows.items()):
            y = self._y + 18 * number
            self._parts.append(f'<text x="{LEFT - 8}" y="{y + 12:.1f}" class="end">{escape(name)}</text>')
            for second, value in enumerate(values):
                if value > 0:
                    place = f'x="{self._x(second):.1f}" y="{y:.1f}" width="{width + 0.3:.1f}" height="15"'
                    self._parts.append(f'<rect {place} fill="#2563eb" opacity="{min(1.0, max(0.06, value)):.2f}"/>')
            for _, first, last in (each for each in troubles if each[0] == name):
                x, right = self._x(first), self._x(min(last, self._seconds))
                place = f'x="{x:.1f}" y="{y:.1f}" width="{max(0.0, right - x):.1f}" height="15"'
                self._parts.append(f'<rect {place} fill="none" stroke="#c2410c" stroke-width="1.5"/>')
        self._axis(18 * len(rows), {}, 1.0, with_marks=False)

    def text(self, lines: Sequence[str]) -> None:
        """Write lines of text."""
        for line in lines:
            self._parts.append(f'<text x="24" y="{self._y:.1f}" class="mono">{escape(line)}</text>')
            self._y += 17

    def write(self, file: Path) -> None:
        """Write the chart as SVG."""
        style = (
            "text{font:12px system-ui,'Open Sans',sans-serif;fill:#222}.title{font-size:19px;font-weight:600}"
            ".head{font-weight:600}.end{text-anchor:end}.mid{text-anchor:middle}.mono{white-space:pre}"
            ".dashed{stroke-dasharray:5 4;stroke-width:1.3}"
        )
        height = self._y + 10
        size = f'width="{WIDTH}" height="{height:.0f}" viewBox="0 0 {WIDTH} {height:.0f}"'
        file.write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{style}</style>'
            f'<rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(self._parts) + "\n</svg>\n"
        )

    # ------------------------------------------------------------------------------------------------------- in parts

    def _begin(self, title: str, series: Values, height: float) -> None:
        self._parts.append(f'<text x="24" y="{self._y + 4:.1f}" class="head">{escape(title)}</text>')
        x = 420.0
        for colour, name in zip(COLOURS, series, strict=False):
            place = f'x="{x}" y="{self._y - 6:.1f}" width="11" height="11"'
            self._parts.append(f'<rect {place} fill="{colour}"/>')
            self._parts.append(f'<text x="{x + 16}" y="{self._y + 4:.1f}">{escape(name)}</text>')
            x += 30 + 7 * len(name)
        self._y += 16
        box = f'x="{LEFT}" y="{self._y:.1f}" width="{WIDTH - LEFT - RIGHT}" height="{height}"'
        self._parts.append(f'<rect {box} fill="#f6f7f9"/>')

    def _axis(self, height: float, labels: Mapping[float, str], top: float, *, with_marks: bool = True) -> None:
        for value, label in labels.items():
            y = self._of(value, height, top)
            self._parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" class="end">{label}</text>')
        for since, until, label in self._marks if with_marks else ():
            x, right = self._x(since), self._x(min(until, self._seconds))
            place = f'x="{x:.1f}" y="{self._y:.1f}" width="{max(1.0, right - x):.1f}" height="{height}"'
            self._parts.append(f'<rect {place} fill="#c2410c" opacity="0.10"><title>{escape(label)}</title></rect>')
        for second, label in self._ticks.items():
            x = self._x(second)
            self._parts.append(f'<text x="{x:.1f}" y="{self._y + height + 15:.1f}" class="mid">{escape(label)}</text>')
        self._y += height + 42

    def _polyline(
        self, points: Sequence[tuple[float, float]], height: float, top: float, colour: str, more: str
    ) -> None:
        if points:
            places = " ".join(f"{self._x(s):.1f},{self._of(v, height, top):.1f}" for s, v in points)
            self._parts.append(f'<polyline points="{places}" fill="none" stroke="{colour}" {more}/>')

    def _x(self, second: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * second / self._seconds

    def _of(self, value: float, height: float, top: float) -> float:
        return self._y + height * (1 - min(1.0, max(0.0, value / top)))

    @staticmethod
    def _at(values: Sequence[float], second: int) -> float:
        return values[second] if second < len(values) else 0.0


def _log(seconds: float) -> float:
    return math.log10(max(seconds, 1e-3)) + 3
