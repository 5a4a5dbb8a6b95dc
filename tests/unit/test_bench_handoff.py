"""The benchmark of moves finds what it is to find: each check with a planted fault."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from bench.cluster.pauses import Phase
from bench.cluster.starts import Start, Starts
from bench.cluster.verdict import counted, figures_of, groups_of
from emq.quota.counter import MICRO
from emq.topics.model import Topic, TopicOptions, split

QUOTA = 5
SECONDS = 60
BASE = 1_000_000
"""The first second, since the epoch."""


def at(second: float) -> int:
    return round((BASE + second) * MICRO)


def topics_of(pacing: Any = "window", count: int = 1) -> list[Topic]:
    options = TopicOptions(pacing=pacing)
    return [split(Topic(f"t{i}", 2.0 * QUOTA, QUOTA, ("only",), options=options)) for i in range(count)]


def history(owners: Sequence[tuple[float, int]], pauses_s: Sequence[tuple[float, float]] = ()) -> list[Start]:
    """A group's starts, in a burst at the beginning of each second.

    Args:
        owners: (from which second on, host).
        pauses_s: (from second, to second) in which nothing was started.
    """
    starts: list[Start] = []
    for second in range(SECONDS):
        if not any(begin <= second < end for begin, end in pauses_s):
            host = [host for since, host in owners if since <= second][-1]
            starts += [Start(at(second) + i * 100, host, len(starts) + i) for i in range(QUOTA)]
    return starts


def recorded(groups: Sequence[Sequence[Start]], per_group: int = QUOTA * SECONDS) -> Starts:
    starts = Starts(len(groups), per_group)
    for index, group in enumerate(groups):
        for us, host, number in group:
            starts.add(Start(us, host, index * per_group + number))
    return starts


JOIN = Phase("join", at(20.5), at(30.5))
KILL = Phase("kill", at(40.5), at(55.5))
PHASES = [Phase("calm", at(10.5), at(19.5)), JOIN, KILL]


def test_a_start_too_many_a_repeat_and_a_loss_are_counted() -> None:
    one, other = history([(0, 0)]), history([(0, 1)])
    groups = groups_of(topics_of())
    assert counted(recorded([one, other]), groups, killed=()) == (0, 0, 0, 0)
    early = [start._replace(us=start.us - MICRO) if start.number == 100 else start for start in one]
    assert counted(recorded([early, other]), groups, killed=()) == (1, 0, 0, 0)
    repeat = [start._replace(number=99) if start.number == 100 else start for start in one]
    assert counted(recorded([repeat, other]), groups, killed=()) == (0, 1, 0, 1)


def test_smooth_starts_are_held_to_their_cap_in_any_second() -> None:
    one = [Start(at(i / QUOTA), 0, i) for i in range(QUOTA * SECONDS)]
    groups = groups_of(topics_of("smooth"))
    assert counted(recorded([one, one]), groups, killed=()) == (0, 0, 0, 0)
    # With a burst of 2 there may be 12 of both groups in any second, aligned or not.
    burst = [Start(at(20 + i / 10), 0, i) for i in range(6)]
    assert counted(recorded([burst, one]), groups, killed=()).cap_violations == 0
    across_the_edge = [Start(at(20.6 + i / 10), 0, i) for i in range(8)]
    assert counted(recorded([across_the_edge, one]), groups, killed=()).cap_violations == 1


def test_the_figures_of_a_run_say_what_moved_and_for_how_long() -> None:
    moved = history([(0, 0), (25, 1), (48, 2)], [(24, 25), (41, 48)])
    starts = recorded([moved, history([(0, 2)])])
    found = figures_of(starts, PHASES, {1}, topics_of(), session_timeout_s=6.0)
    assert found["clean_pause_p99_s"] == pytest.approx(2, abs=0.001)
    assert found["clean_excess_p99_s"] == pytest.approx(1, abs=0.001)
    assert found["kill_pause_p99_s"] == pytest.approx(7.5, abs=0.001), "from the kill on"
    assert found["kill_gap_p99_s"] == pytest.approx(8, abs=0.001)
    assert found["kill_pause_p99_beyond_timeout_s"] == pytest.approx(1.5, abs=0.001)
    assert (found["join_moves"], found["kill_moves"], found["unmoved_pause_s"]) == (1, 1, 0)
