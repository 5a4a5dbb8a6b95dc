"""The cost of moves for groups that move and groups that stay, computed from the starts of all their messages.

With pacing by the second, a group with a backlog starts its quota in a burst at the beginning of each second. Its usual
gap is then 1 s, and a move with a gap of 1 s has missed no second. With smooth pacing, the gaps are 1/quota, and a move
adds the time of the handoff to one gap.
"""

from __future__ import annotations

import bisect
import itertools
import operator
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from bench.cluster.starts import Start
from emq.quota.counter import MICRO, allowance

USUAL_S = 5
"""Seconds before a change of hosts in which a group's usual gap is measured."""


class Phase(NamedTuple):
    """A change of the hosts, and the time from the change until all was calm again.

    Attributes:
        kind: "calm" (no change), "join", "leave" (SIGTERM) or "kill".
        begin_us, end_us: microseconds since the epoch.
    """

    kind: str
    begin_us: int
    end_us: int


class Pause(NamedTuple):
    """The pause of a group that moved.

    Attributes:
        gap_us: the longest time from a start by the group's former owner to the next start, by its new owner.
        pause_us: the same time, without the part before the former owner was killed.
        excess_us: the gap less the group's usual gap before.
        by_kill: True if the former owner was killed.
    """

    gap_us: int
    pause_us: int
    excess_us: int
    by_kill: bool


class Shortage(NamedTuple):
    """The shortage of groups that did not move, in one phase.

    Attributes:
        seconds: aligned seconds observed, summed over the groups.
        short: those of these seconds with fewer starts than the quota.
        longest_gap_us: the longest time between two starts of a group.
    """

    seconds: int
    short: int
    longest_gap_us: int


_us = operator.attrgetter("us")


def within(starts: Sequence[Start], begin_us: int, end_us: int) -> Sequence[Start]:
    """Return the starts from `begin_us` to before `end_us`."""
    first = bisect.bisect_left(starts, begin_us, key=_us)
    return starts[first : bisect.bisect_left(starts, end_us, first, key=_us)]


def pause(starts: Sequence[Start], phase: Phase, killed: Collection[int]) -> Pause | None:
    """Return the group's pause in a phase; None if its owner kept it. `killed` has the hosts killed at any time."""
    before = within(starts, phase.begin_us - (USUAL_S + 1) * MICRO, phase.begin_us)
    gaps = [
        (later.us - earlier.us, later.us, earlier.host in killed)
        for earlier, later in itertools.pairwise([*before[-1:], *within(starts, phase.begin_us, phase.end_us)])
        if earlier.host != later.host
    ]
    if not gaps:
        return None
    gap_us, until_us, by_kill = max(gaps)
    pause_us = min(gap_us, until_us - phase.begin_us) if by_kill else gap_us
    return Pause(gap_us, pause_us, gap_us - usual_gap_us(before, phase.begin_us), by_kill)


def usual_gap_us(starts: Sequence[Start], end_us: int) -> int:
    """Return the usual gap: the median, over the seconds before `end_us`, of the longest gap that ended in each.

    Returns 0 if there is no gap.
    """
    longest: dict[int, int] = {}
    for earlier, later in itertools.pairwise(starts):
        second = (end_us - later.us) // MICRO
        if second < USUAL_S:
            longest[second] = max(longest.get(second, 0), later.us - earlier.us)
    return round(statistics.median(longest.values())) if longest else 0


def owner_before(starts: Sequence[Start], us: int) -> int:
    """Return the host of the last start before `us`; -1 if there is none."""
    count = bisect.bisect_left(starts, us, key=_us)
    return starts[count - 1].host if count else -1


def shortage(starts: Sequence[Start], phase: Phase, quota: float, slack: int) -> Shortage:
    """Return the shortage of a group that stayed with its owner in a phase.

    Args:
        slack: number of starts by which a second may miss the quota. With smooth pacing, one start may fall just past
            the edge of an aligned second.
    """
    first, end = -(-phase.begin_us // MICRO), phase.end_us // MICRO
    micros = round(quota * MICRO)
    counts = Counter(start.us // MICRO for start in within(starts, first * MICRO, end * MICRO))
    short = sum(counts[second] < allowance(micros, second) - slack for second in range(first, end))
    reach = within(starts, phase.begin_us - MICRO, phase.end_us)
    longest_us = max((later.us - earlier.us for earlier, later in itertools.pairwise(reach)), default=0)
    return Shortage(max(0, end - first), short, longest_us)


def summed(parts: Iterable[Shortage]) -> Shortage:
    parts = list(parts)
    return Shortage(
        sum(p.seconds for p in parts), sum(p.short for p in parts), max((p.longest_gap_us for p in parts), default=0)
    )


def beyond(moving: Shortage, calm: Shortage) -> float:
    """Return the short seconds beyond the usual number, taken from as many calm seconds; at least 0."""
    usual = calm.short / calm.seconds * moving.seconds if calm.seconds else 0.0
    return max(0.0, moving.short - usual)


def duplicates(starts: Iterable[Start], killed: Collection[int]) -> tuple[int, int]:
    """Count the repeated starts of messages: without a kill, and after a kill of the host that started them before."""
    clean = after_kill = 0
    seen: dict[int, int] = {}
    for start in starts:
        if (host := seen.get(start.number)) is not None:
            if host in killed and host != start.host:
                after_kill += 1
            else:
                clean += 1
        seen[start.number] = start.host
    return clean, after_kill
