"""The benchmark of moves finds what it is to find: each check with a planted fault."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.cluster import pauses
from bench.cluster.crew import InvalidRun
from bench.cluster.handoff import Options
from bench.cluster.pauses import Pause, Phase, Shortage
from bench.cluster.starts import Start, Starts
from bench.cluster.verdict import counted, figures_of, groups_of, least_moves
from bench.support.backlog import fill, number_of, queues_of
from emq.quota.counter import MICRO
from emq.runtime.environment import Environment
from emq.storage import message, opening
from emq.storage.log_store import Read
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


def test_the_pause_is_the_gap_in_which_the_owner_changed_and_the_excess_what_is_above_the_usual_one() -> None:
    starts = history([(0, 0), (25, 1)], [(23, 25)])
    found = pauses.pause(starts, JOIN, killed=())
    assert found == Pause(3 * MICRO - 400, 3 * MICRO - 400, 2 * MICRO, by_kill=False)
    assert pauses.pause(starts, KILL, killed=()) is None


def test_a_longer_gap_beside_the_move_is_not_the_pause() -> None:
    found = pauses.pause(history([(0, 0), (25, 1)], [(27, 29)]), JOIN, killed=())
    assert found is not None
    assert found.gap_us == MICRO - 400


def test_a_move_right_at_the_beginning_of_a_phase_counts() -> None:
    found = pauses.pause(history([(0, 0), (21, 1)]), JOIN, killed=())
    assert found is not None
    assert found.gap_us == MICRO - 400


def test_the_pause_after_a_kill_is_kept_apart_from_clean_ones() -> None:
    found = pauses.pause(history([(0, 0), (48, 1)], [(41, 48)]), KILL, killed={0})
    assert found is not None
    assert found.by_kill
    assert found.gap_us == 8 * MICRO - 400


def test_the_usual_gap_of_smooth_starts_is_that_between_single_ones() -> None:
    starts = [Start(at(i / QUOTA), 0, i) for i in range(100)]
    assert pauses.usual_gap_us(starts, at(20)) == MICRO // QUOTA
    assert pauses.usual_gap_us([], at(20)) == 0


def test_a_group_that_stays_and_misses_a_second_is_short() -> None:
    whole = pauses.shortage(history([(0, 0)]), JOIN, QUOTA, slack=0)
    assert whole == Shortage(seconds=9, short=0, longest_gap_us=MICRO - 400)
    missed = pauses.shortage(history([(0, 0)], [(25, 26)]), JOIN, QUOTA, slack=0)
    assert missed == Shortage(seconds=9, short=1, longest_gap_us=2 * MICRO - 400)


def test_one_start_too_few_is_short_unless_it_may_have_fallen_past_the_edge() -> None:
    starts = history([(0, 0)])
    del starts[25 * QUOTA]
    assert pauses.shortage(starts, JOIN, QUOTA, slack=0).short == 1
    assert pauses.shortage(starts, JOIN, QUOTA, slack=1).short == 0
    del starts[25 * QUOTA]
    assert pauses.shortage(starts, JOIN, QUOTA, slack=1).short == 1


def test_short_seconds_count_beyond_those_without_any_move() -> None:
    moving, calm = Shortage(100, 7, 0), Shortage(50, 2, 0)
    assert pauses.beyond(moving, calm) == 3
    assert pauses.beyond(Shortage(100, 1, 0), calm) == 0
    assert pauses.beyond(moving, Shortage(0, 0, 0)) == 7


def test_a_repeat_is_forgiven_only_if_the_host_that_had_started_it_was_killed() -> None:
    starts = [Start(1, 0, 7), Start(2, 1, 7)]
    assert pauses.duplicates(starts, killed={0}) == (0, 1)
    assert pauses.duplicates(starts, killed={1}) == (1, 0)
    assert pauses.duplicates([Start(1, 0, 7), Start(2, 0, 7)], killed={0}) == (1, 0)


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


def test_the_least_moves_are_those_of_who_leaves_and_the_share_of_who_joins() -> None:
    topics = topics_of(count=2)
    joined, orphan = history([(0, 0), (25, 2)]), history([(0, 1), (48, 0)], [(41, 48)])
    starts = recorded([joined, orphan, orphan, orphan])
    assert list(least_moves(starts, [JOIN, KILL], groups_of(topics))) == [2, 3]


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


def test_a_run_in_which_nothing_moved_is_no_run() -> None:
    still = recorded([history([(0, 0)]), history([(0, 1)])])
    with pytest.raises(InvalidRun, match="no group moved in a phase of kind 'join'"):
        figures_of(still, PHASES, set(), topics_of(), session_timeout_s=6.0)


@pytest.mark.parametrize(("values", "text"), [({"groups": 25}, "multiple"), ({"pacing": "rough"}, "window or smooth")])
def test_options_that_make_no_sense_are_refused(values: dict[str, Any], text: str) -> None:
    options = Options(20, 5.0, "window", hosts=4, rounds=1, ensemble=1, session_timeout_s=6.0, phase_s=15.0)
    with pytest.raises(InvalidRun, match=text):
        options._replace(**values).topics()


def test_starts_are_read_as_they_are_recorded_a_half_written_one_later(tmp_path: Path) -> None:
    starts = Starts(groups=2, per_group=10)
    path = tmp_path / "host.starts"
    starts.add_file(path)
    record = struct.pack("<qqqq", 3, at(1), 14, at(2))
    path.write_bytes(record[:-4])
    starts.read()
    assert starts.of(0) == [Start(at(1), 0, 3)]
    assert starts.owners() == [0, -1]
    path.write_bytes(record)
    starts.read()
    assert starts.of(1) == [Start(at(2), 0, 14)]
    assert starts.of(0) == [Start(at(1), 0, 3)]


async def test_messages_are_numbered_queue_by_queue() -> None:
    topics = topics_of(count=2)
    url = "memory://numbered"
    assert await fill(url, topics, 3, numbered=True) == 12
    store = await opening.open_store(url, Environment.ONLINE)
    batches = await store.log.read([Read(queue, 0, 10, 0) for queue in queues_of(topics)])
    numbers = [number_of(message.decode(body).payload) for batch in batches for body in batch.bodies]
    await store.close()
    assert numbers == list(range(12))
