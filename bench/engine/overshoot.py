"""Counts starts beyond a quota."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from emq.topics.shares import MICRO, Share, share_of

QUOTAS = (0.5, 1, 2, 2.5, 5, 10, 20, 35, 50)
"""Starts a second of the topics of the benchmarks of caps."""


def window_overshoot(starts_us: Sequence[int], quota: float | Share) -> int:
    """Return the number of starts beyond the quota, summed over all aligned seconds."""
    share = quota if isinstance(quota, Share) else share_of(quota)
    seconds = Counter(us // MICRO for us in starts_us)
    return sum(max(0, n - share.allowance(second)) for second, n in seconds.items())


def smooth_overshoot(starts_us: Sequence[int], quota: float) -> int:
    """Return the most starts beyond quota + burst in any second, aligned or not."""
    bound = math.floor(quota + 1 + quota / 10)
    ordered, worst, first = sorted(starts_us), 0, 0
    for last, us in enumerate(ordered):
        while ordered[first] <= us - MICRO:
            first += 1
        worst = max(worst, last - first + 1 - bound)
    return worst
