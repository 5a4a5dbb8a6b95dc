"""The figures of the benchmark `handoff`, from the starts of its hosts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from bench.cluster import pauses
from bench.cluster.allocation import least_to_join
from bench.cluster.crew import InvalidRun
from bench.cluster.pauses import Pause, Phase, Shortage
from bench.cluster.starts import Starts
from bench.engine.overshoot import smooth_overshoot, window_overshoot
from bench.support.figures import percentile
from emq.topics.model import Topic, quota_of


class Group(NamedTuple):
    """A group of the benchmark; `number` as in `Starts`."""

    number: int
    name: str
    quota: float
    pacing: str


class Counts(NamedTuple):
    """Counts that must be 0, except `after_kill`."""

    cap_violations: int
    clean_duplicates: int
    after_kill: int
    lost: int


def groups_of(topics: Sequence[Topic]) -> list[Group]:
    """Return the groups in the order of `bench.support.backlog.queues_of`."""
    named = [(t.group(i), quota_of(t, i), t.options.pacing) for t in topics for i in range(t.groups)]
    return [Group(number, *group) for number, group in enumerate(named)]


def figures_of(
    starts: Starts, phases: Sequence[Phase], killed: Collection[int], topics: Sequence[Topic], session_timeout_s: float
) -> dict[str, Any]:
    """Return all figures. Raises `InvalidRun` if a kind of change has moved no group.

    Args:
        killed: numbers of the hosts that were killed.
    """
    groups = groups_of(topics)
    found: list[Pause] = []
    shortages: dict[bool, list[Shortage]] = {False: [], True: []}
    moved = Counter[Phase]()
    for group in groups:
        mine = starts.of(group.number)
        slack = 1 if group.pacing == "smooth" else 0
        for phase in phases:
            pause = pauses.pause(mine, phase, killed)
            if pause is not None:
                found.append(pause)
                moved[phase] += 1
            else:
                shortages[phase.kind != "calm"].append(pauses.shortage(mine, phase, group.quota, slack))
    for phase in phases:
        if phase.kind != "calm" and not moved[phase]:
            raise InvalidRun(f"no group moved in a phase of kind {phase.kind!r}; give more --groups")
    counts = counted(starts, groups, killed)
    return {
        **_pauses(found, session_timeout_s),
        **_unmoved(pauses.summed(shortages[True]), pauses.summed(shortages[False])),
        "cap_violations": counts.cap_violations,
        "clean_duplicates": counts.clean_duplicates,
        "kill_duplicates": counts.after_kill,
        "lost": counts.lost,
        **{f"{kind}_moves": sum(moved[p] for p in phases if p.kind == kind) for kind in ("join", "leave", "kill")},
        "moves_over_minimum": moved.total() / sum(least_moves(starts, phases, groups)),
        "messages": starts.groups * starts.per_group,
    }


def _pauses(found: Sequence[Pause], session_timeout_s: float) -> dict[str, float]:
    values: dict[str, float] = {}
    for name, by_kill in (("clean", False), ("kill", True)):
        gaps = [pause.pause_us / 1e6 for pause in found if pause.by_kill == by_kill]
        excess = [pause.excess_us / 1e6 for pause in found if pause.by_kill == by_kill]
        values |= {f"{name}_pause_p{p}_s": percentile(gaps, p) for p in (50, 99)}
        values[f"{name}_pause_max_s"] = max(gaps, default=0.0)
        values |= {f"{name}_excess_p{p}_s": percentile(excess, p) for p in (50, 99)}
    values["kill_gap_p99_s"] = percentile([pause.gap_us / 1e6 for pause in found if pause.by_kill], 99)
    values["kill_pause_p99_beyond_timeout_s"] = values["kill_pause_p99_s"] - session_timeout_s
    return values


def _unmoved(moving: Shortage, calm: Shortage) -> dict[str, float]:
    return {
        "unmoved_pause_s": pauses.beyond(moving, calm),
        "unmoved_short_s": moving.short,
        "unmoved_seconds": moving.seconds,
        "unmoved_longest_gap_s": moving.longest_gap_us / 1e6,
        "calm_short_s": calm.short,
        "calm_seconds": calm.seconds,
        "calm_longest_gap_s": calm.longest_gap_us / 1e6,
    }


def counted(starts: Starts, groups: Sequence[Group], killed: Collection[int]) -> Counts:
    """Count the starts above the topics' caps, the messages started twice, and the messages never started."""
    violations = clean = after_kill = lost = 0
    of_topics: dict[tuple[str, str], list[Group]] = defaultdict(list)
    for group in groups:
        of_topics[group.name.rpartition("/")[0], group.pacing].append(group)
    for (_, pacing), its in of_topics.items():
        overshoot = smooth_overshoot if pacing == "smooth" else window_overshoot
        every = sorted(start.us for group in its for start in starts.of(group.number))
        violations += overshoot(every, sum(group.quota for group in its))
    for group in groups:
        mine = starts.of(group.number)
        repeats = pauses.duplicates(mine, killed)
        clean += repeats[0]
        after_kill += repeats[1]
        lost += starts.per_group - len({start.number for start in mine})
    return Counts(violations, clean, after_kill, lost)


def least_moves(starts: Starts, phases: Sequence[Phase], groups: Sequence[Group]) -> Iterator[float]:
    """Yield for each change of hosts the fewest groups that any plan could have moved."""
    quotas = {group.name: group.quota for group in groups}
    every = [starts.of(group.number) for group in groups]
    for phase in phases:
        before = {g.name: str(pauses.owner_before(mine, phase.begin_us)) for g, mine in zip(groups, every, strict=True)}
        if phase.kind == "join":
            yield least_to_join(before, quotas, len(set(before.values()))).groups
        elif phase.kind in ("leave", "kill"):
            after = {str(pauses.owner_before(mine, phase.end_us)) for mine in every}
            yield sum(owner not in after for owner in before.values())
