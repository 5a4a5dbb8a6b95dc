"""Options of ECharts. A colour `--name` stands for the custom property of that name in the style sheet."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

SECONDS = 60
"""Seconds that the chart of starts shows."""


def starts(second: int, counts: Sequence[int], cap_per_s: float) -> dict[str, Any]:
    """Return the chart of starts in each second against the cap.

    Args:
        second: the last second of `counts`, since the epoch.
        counts: starts in each second up to then.
        cap_per_s: most starts in a second.
    """
    counts = list(counts)[-SECONDS:]
    bars: list[int | None] = [None] * (SECONDS - len(counts))
    names = [time.strftime("%H:%M:%S", time.gmtime(second - SECONDS + 1 + i)) for i in range(SECONDS)]
    text = {"color": "--soft", "fontFamily": "--font"}
    return {
        "animation": False,
        "textStyle": text,
        "grid": {"left": 8, "right": 16, "top": 12, "bottom": 8, "containLabel": True},
        "xAxis": {
            "type": "category",
            "data": names,
            "axisLine": {"lineStyle": {"color": "--line"}},
            "axisTick": {"show": False},
            "axisLabel": {"color": "--soft", "interval": 14, "showMaxLabel": True, "hideOverlap": True, "margin": 12},
        },
        "yAxis": {
            "type": "value",
            "min": 0,
            "minInterval": 1,
            "max": _ceiling(max([cap_per_s, *counts])),
            "splitLine": {"lineStyle": {"color": "--line"}},
            "axisLabel": {"color": "--soft"},
        },
        "series": [
            {
                "name": "starts",
                "type": "bar",
                "data": [*bars, *counts],
                "itemStyle": {"color": "--rate"},
                "barCategoryGap": "20%",
            },
            {
                "name": "cap",
                "type": "line",
                "data": [cap_per_s] * SECONDS,
                "symbol": "none",
                "lineStyle": {"color": "--bad", "type": "dashed", "width": 2},
                "itemStyle": {"color": "--bad"},
            },
        ],
    }


def _ceiling(most: float) -> float:
    """Return a round number some way above the highest value, so that the axis does not jump with each second."""
    step = 10.0 ** (len(str(int(max(1.0, most)))) - 1) / 2
    return max(step, -(-most * 1.1 // step) * step)
