"""Find out whether a difference between clocks explains too many starts.

If two hosts start a group's messages one after the other, their starts seem to overlap by the difference of their
clocks. The starts keep the cap if they do so under some correction of the clocks, within the largest difference. This
module tries corrections in steps and keeps the best one, host by host, until none is better.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from emq.topics.shares import MICRO

STEPS: Final = 10
"""Number of clock corrections tried in each direction."""

Found = Sequence[tuple[int, str]]
"""Time and source of each start, in order of time."""

Excess = Callable[[Mapping[str, int]], int]
"""Takes a clock correction by source, in steps; returns the number of starts above the cap."""


def explains_second(found: Found, second: int, allowed_in: Callable[[int], int], slack_us: int) -> bool:
    """Return whether some clock correction keeps the cap in an aligned second and in the seconds beside it."""
    beside = range(second - 1, second + 2)
    near = _near(found, (second - 1) * MICRO - slack_us, (second + 2) * MICRO + slack_us)
    counted: dict[tuple[str, int], Counter[int]] = {}

    def excess(steps: Mapping[str, int]) -> int:
        for source, step in steps.items():
            if (source, step) not in counted:
                counted[source, step] = Counter((us + slack_us * step // STEPS) // MICRO for us in near[source])
        sums = (sum(counted[each][at] for each in steps.items()) - allowed_in(at) for at in beside)
        return sum(over for over in sums if over > 0)

    return bool(slack_us) and len(near) > 1 and _can_be_set_right(near, excess)


def explains_stretch(found: Found, from_us: int, allowed: int, slack_us: int) -> bool:
    """Return whether some clock correction keeps the cap in all stretches of one second near a time.

    Near means from one second before `from_us` until two seconds after it.
    """
    near = _near(found, from_us - MICRO - slack_us, from_us + 2 * MICRO + slack_us)

    def excess(steps: Mapping[str, int]) -> int:
        times = sorted(us + slack_us * step // STEPS for source, step in steps.items() for us in near[source])
        return sum(1 for i, us in enumerate(times) if i + allowed < len(times) and times[i + allowed] < us + MICRO)

    return bool(slack_us) and len(near) > 1 and _can_be_set_right(near, excess)


def _near(found: Found, from_us: int, until_us: int) -> dict[str, list[int]]:
    near: dict[str, list[int]] = defaultdict(list)
    for time_us, source in found[bisect_left(found, (from_us, "")) : bisect_left(found, (until_us, ""))]:
        near[source].append(time_us)
    return near


def _can_be_set_right(sources: Collection[str], excess: Excess) -> bool:
    return any(_is_set_right(sources, excess, range(first, first + STEPS + 1)) for first in range(-STEPS, 1))


def _is_set_right(sources: Iterable[str], excess: Excess, within: Sequence[int]) -> bool:
    steps = dict.fromkeys(sorted(sources), 0)
    least, better = excess(steps), True
    while least and better:
        better = False
        for source in steps:
            most = min(within, key=lambda step, source=source: excess({**steps, source: step}))  # type: ignore[misc]
            if (now := excess({**steps, source: most})) < least:
                steps[source], least, better = most, now, True
    return not least
