"""Q from below: a backlog uses its quota, a change included; and what comes to an idle group starts at once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from emq.topics import shares
from emq.topics.shares import MICRO, Division
from support.simulation.evidence import Evidence, Start
from support.simulation.rules import Rules
from support.simulation.violation import Violation
from support.simulation.waits import Wait, Waits, allowed, rate

USED = 0.99

WAITED_S = 0.15
"""What was ready so long before a second began counts as waiting in it."""

AT_ONCE_S = 0.1
"""Within which a message starts whose group has quota left. Timers are on a grid of 4 ms and calls take no time in calm
times, so this is what the promise leaves a busy machine."""

SMOOTH_S = 2.0
"""Shorter waits tell nothing of a smooth topic's rate."""


def judge(evidence: Evidence, rules: Rules, waits: Waits) -> Iterator[Violation]:
    for group, found in waits.by_group.items():
        plan, divisions = rules.plans[group.rpartition("/")[0]], rules.divisions[group.rpartition("/")[0]]
        if plan.shares_budget:
            continue  # see `budget_use`
        if plan.is_smooth:
            yield from _smooth(group, found, waits, divisions)
        else:
            yield from _window(group, found, waits, divisions, lent=plan.borrows)


# --------------------------------------------------------------------------------------------------------------- window


def _window(
    group: str, found: Sequence[Wait], waits: Waits, divisions: Sequence[Division], lent: bool
) -> Iterator[Violation]:
    seconds = Counter(start.started_us // MICRO for start in waits.starts[group])
    yield from _used(group, found, waits, divisions, seconds)
    if not lent:  # else a sister may have what the group has left of a second
        yield from _at_once(group, found, waits, divisions)


def _used(
    group: str, found: Sequence[Wait], waits: Waits, divisions: Sequence[Division], seconds: Counter[int]
) -> Iterator[Violation]:
    """Report seconds with a waiting message throughout, in which fewer messages started than the quota allows."""
    through: dict[int, Wait] = {}
    for wait in found:
        for second in range(math.ceil(wait.since_us / 1e6 + WAITED_S), wait.start.started_us // MICRO):
            through.setdefault(second, wait)
    had = might = 0
    worst: tuple[int, Wait] | None = None
    for second, wait in sorted(through.items()):
        begin = wait.start.at - (wait.start.started_us / 1e6 - second)
        may = allowed(divisions, group, second)
        if seconds[second] < may and waits.is_excused(wait, begin, begin + 1):
            continue
        had, might = had + min(may, seconds[second]), might + may
        if seconds[second] < may:
            worst = worst or (second, wait)
    if had < USED * might and worst is not None:
        second, wait = worst
        begin = wait.start.at - (wait.start.started_us / 1e6 - second)
        text = f"{had} of {might} starts used with a backlog; first in second {second}: {seconds[second]} of"
        text += f" {allowed(divisions, group, second)}, while {wait.start.work.name} waited"
        yield Violation("use", group, f"{text}, at {begin:.3f} s")


def _at_once(group: str, found: Sequence[Wait], waits: Waits, divisions: Sequence[Division]) -> Iterator[Violation]:
    """Who comes while the second has quota left starts in it, and at once."""
    by_second: dict[int, list[Start]] = {}
    for start in waits.starts[group]:
        by_second.setdefault(start.started_us // MICRO, []).append(start)
    for wait in found:
        start, since_s = wait.start, wait.since_us / 1e6
        second = int(since_s)
        if start.at <= wait.since + AT_ONCE_S or since_s + AT_ONCE_S >= second + 1:
            continue
        before = sum(other.number < start.number for other in by_second.get(second, ()))
        if before < allowed(divisions, group, second) and not waits.is_excused(wait, wait.since, start.at):
            yield _late(group, wait)
            return


def _late(group: str, wait: Wait) -> Violation:
    late_s = wait.start.at - wait.since
    return Violation(
        "delay", group, f"{wait.start.work.name} started {late_s:.3f} s late with quota left, at {wait.since:.3f} s"
    )


# --------------------------------------------------------------------------------------------------------------- smooth


def _smooth(group: str, found: Sequence[Wait], waits: Waits, divisions: Sequence[Division]) -> Iterator[Violation]:
    """As for a window; a token may have to be waited for."""
    times = [start.at for start in waits.starts[group]]
    spans: list[tuple[float, float, Wait]] = []
    for wait in sorted(found, key=lambda wait: wait.since):
        second, start = wait.since_us // MICRO, wait.start
        if not (per_s := rate(divisions, group, second)):
            continue
        in_force = max((d for d in divisions if d.since_s <= second), key=lambda d: d.since_s, default=divisions[0])
        pace = shares.pace(in_force, int(group.rpartition("/")[2]), None)
        patience = AT_ONCE_S + (1 / per_s if pace.lifetime_s else 0.0)
        idle = not any(wait.since - 2 / per_s <= at < start.at for at in times)
        if idle and start.at > wait.since + patience and not waits.is_excused(wait, wait.since, start.at):
            yield _late(group, wait)
            return
        if spans and wait.since <= spans[-1][1]:
            begin, end, first = spans[-1]
            spans[-1] = begin, max(end, start.at), first
        else:
            spans.append((wait.since, start.at, wait))
    for begin, end, wait in spans:
        per_s = rate(divisions, group, wait.since_us // MICRO)
        had, might = sum(begin <= at < end for at in times), per_s * (end - begin)
        # One start at each end of the span may lie just outside.
        if end - begin >= SMOOTH_S and had < USED * might - 2 and not waits.is_excused(wait, begin, end):
            yield Violation("use", group, f"{had} of {might:.1f} starts used with a backlog, at {begin:.3f} s")
            return
