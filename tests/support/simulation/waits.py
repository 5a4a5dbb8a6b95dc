"""The waits of messages and their causes, by which the judges of priority, use and latency go."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from emq.topics.model import Kind
from emq.topics.shares import MICRO, Division
from support.simulation.evidence import Acquired, Evidence, Start
from support.simulation.plans import TopicPlan
from support.simulation.rules import Rules

COMING_S = 4
"""A change is known at most so many seconds before it begins; a lower quota counts once it is known."""

ACQUIRED_S = 1.1
"""A new owner starts nothing in the second in which it acquires a group."""


class Wait(NamedTuple):
    """A message's way to its first start.

    Attributes:
        since: true time from when on nothing but its group's counter, and what is ahead of it, held it back.
        since_us: the same by the clock of the host that started it.
    """

    start: Start
    since: float
    since_us: int


class Waits:
    """What waited in calm times: while no fault was under way, nor anything healed.

    Attributes:
        by_group: waits that began and ended in the same calm span, in the order of their starts.
        starts: all starts of a group.
    """

    def __init__(self, evidence: Evidence, rules: Rules) -> None:
        self._evidence = evidence
        self._rules = rules
        self.by_group: dict[str, list[Wait]] = defaultdict(list)
        self.starts: dict[str, list[Start]] = defaultdict(list)
        self._clocks: dict[str, list[tuple[float, int]]] = defaultdict(list)
        self._acquired: dict[str, list[Acquired]] = defaultdict(list)
        for acquired in evidence.owned:
            self._acquired[acquired.group].append(acquired)
        for start in evidence.starts:
            self.starts[start.group].append(start)
            self._clocks[start.host].append((start.at, start.started_us))
        for wait in self._found():
            self.by_group[wait.start.group].append(wait)

    def _found(self) -> Iterator[Wait]:
        evidence, seen = self._evidence, set[str]()
        free = _key_is_free(evidence)
        for start in evidence.starts:
            name, plan = start.work.name, self._rules.plans[start.work.topic]
            if name in seen:
                continue
            seen.add(name)
            confirmed = evidence.confirmed_at.get(name)
            if confirmed is None or start.attempt > 1 or plan.moving or plan.pauses or plan.sleeps:
                continue
            since = max(confirmed, free.get(name, 0.0), evidence.folding.free_at.get(name, 0.0))
            if (due_us := _due_us(evidence, plan, name)) is not None:
                since = max(since, start.at - (start.started_us - due_us) / 1e6)
            if since <= start.at and any(begin <= since and start.at <= end for begin, end in self._rules.calm):
                yield Wait(start, since, self._by_clock(start, since))

    def _by_clock(self, start: Start, at: float) -> int:
        """A true time, before the start, by the clock of the start's host.

        Between two starts the clock is taken to go evenly. It does not go with the true time: a host that is seconds
        ahead of its environment slows its clock by a hundredth until it is not. A host that starts little is then
        tenths of a second off a reading that goes by its last start alone.
        """
        times = self._clocks[start.host]
        later = bisect_right(times, (at, MICRO * MICRO * MICRO))
        time_s, us = times[max(0, later - 1)]
        if 0 < later < len(times):
            next_s, next_us = times[later]
            return us + round((at - time_s) * (next_us - us) / (next_s - time_s))
        return us + round((at - time_s) * 1e6)

    def is_excused(self, wait: Wait, begin: float, end: float) -> bool:
        """Return whether a move or full hands kept the group from starting messages between two times."""
        group, start = wait.start.group, wait.start
        if self.has_moved(group, begin, end):
            return True
        plan = self._rules.plans[start.work.topic]
        if plan.is_serial and self._ran(self.starts[group], begin, end):
            return True
        qps = min(d.qps for d in self._rules.divisions[plan.name] if d.members)
        beside = [s for name, all_ in self.starts.items() if name.startswith(f"{plan.name}/") for s in all_]
        return self._ran([s for s in beside if s.host == start.host], begin, end) >= max(8, math.ceil(5 * qps))

    def has_moved(self, group: str, begin: float, end: float) -> bool:
        """Return whether the group got an owner about then, who starts nothing in that second."""
        return any(begin - ACQUIRED_S < acquired.at <= end + 1 for acquired in self._acquired[group])

    def groups_of(self, topic: str, host: str, begin: float, end: float) -> list[int]:
        """Return the groups of a topic that a host surely owned, and could start messages of, all the time."""
        groups = [group for group in self._acquired if group.rpartition("/")[0] == topic]
        return [int(group.rpartition("/")[2]) for group in groups if self.owned(group, host, begin, end)]

    def owned(self, group: str, host: str, begin: float, end: float) -> bool:
        """Return whether a host surely owned a group, and could start messages of it, all the time.

        A host that lets go of a group starts nothing more of it while the group's last messages run.
        """
        before = [owner for owner in self._acquired[group] if owner.at <= begin - ACQUIRED_S]
        # A host that was stopped may acquire a group under an epoch that is over, a moment before it is refused.
        owner = max(before, key=lambda acquired: acquired.epoch, default=None)
        if owner is None or owner.host != host or self.has_moved(group, begin, end):
            return False
        released = self._evidence.let_go.get((host, group, owner.epoch), math.inf)
        if released == math.inf:
            return True
        return released > end and any(start.host == host and start.at >= begin for start in self.starts[group])

    def _ran(self, starts: Sequence[Start], begin: float, end: float) -> int:
        """How many of these were with a handler that waited at some time of that span."""
        ends = self._evidence.ends
        return sum(s.at < end and s.at < ends.get(s.number, (math.inf, False))[0] >= begin for s in starts)


def _key_is_free(evidence: Evidence) -> dict[str, float]:
    """Return for each work with a key the time when all earlier works of the key were done."""
    done: dict[str, float] = {}
    for start in evidence.starts:
        ended = evidence.ends.get(start.number, (math.inf, False))[0]
        done[start.work.name] = max(done.get(start.work.name, 0.0), ended)
    free: dict[str, float] = {}
    latest: dict[tuple[str, str], float] = {}
    for name, (work, confirmed) in evidence.published.items():
        if work.key:
            free[name] = latest.get((work.topic, work.key), 0.0)
            # What may not have been published may run all the same, and holds nobody back if it does not.
            ended = done.get(name, math.inf if confirmed else 0.0)
            latest[work.topic, work.key] = max(free[name], ended)
    return free


def _due_us(evidence: Evidence, plan: TopicPlan, name: str) -> int | None:
    due_ms = evidence.first_due_ms.get(name)
    if due_ms is None:
        return None
    if plan.kind is Kind.FIXED_TIME and plan.options.get("precision") != "millisecond":
        return math.ceil(due_ms / 1000) * MICRO  # as published: at the second that follows
    return int(due_ms * 1000)


def allowed(divisions: Sequence[Division], groups: Collection[int], second: int) -> int:
    """What groups on one host have to be able to start in a second together: what is in force, or less to come."""
    return min(division.part(groups).allowance(second) for division in _known(divisions, second))


def rate(divisions: Sequence[Division], groups: Collection[int], second: int) -> float:
    """Return the same as `allowed`, in starts a second."""
    return min(float(division.part(groups)) for division in _known(divisions, second))


def _known(divisions: Sequence[Division], second: int) -> list[Division]:
    """Return the division in force, and those to come of a lower qps: a lower one counts once a host knows of it.

    Before a lower one begins, the groups that share it may be corrected several times, as retired groups are found to
    hold something or nothing. So until then nothing is asked of the hosts.
    """
    first = max((i for i, d in enumerate(divisions) if d.since_s <= second), default=0)
    now, coming = divisions[first], [d for d in divisions[first + 1 :] if d.since_s <= second + COMING_S]
    lower = [d for d in coming if d.qps < now.qps]
    if any((d.active, d.draining) != (now.active, now.draining) for d in lower):
        lower.append(Division(0, 0.0, now.group_qps, 0))
    return [now, *lower]
