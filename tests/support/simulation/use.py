"""Q from below: a backlog uses its quota, a change included; and what comes to an idle group starts at once."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from emq.topics import tokens
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
    by_host: dict[tuple[str, str], list[Wait]] = defaultdict(list)
    for group, found in waits.by_group.items():
        for wait in found:
            by_host[group.rpartition("/")[0], wait.start.host].append(wait)
    starts: dict[tuple[str, str], list[Start]] = defaultdict(list)
    for start in evidence.starts:
        starts[start.group.rpartition("/")[0], start.host].append(start)
    for (topic, host), found in by_host.items():
        plan = rules.plans[topic]
        if plan.shares_budget:
            continue  # see `budget_use`
        here = _Here(topic, host, starts[topic, host], rules.divisions[topic], waits)
        found.sort(key=lambda wait: wait.start.number)
        if plan.is_smooth:
            yield from _smooth(here, found)
        else:
            yield from _used(here, found)
            yield from _at_once(here, found)


class _Here(NamedTuple):
    """A topic on one host. Its groups there draw from one counter, wherever the backlog is."""

    topic: str
    host: str
    starts: Sequence[Start]
    divisions: Sequence[Division]
    waits: Waits

    def groups(self, begin: float, end: float) -> list[int]:
        return self.waits.groups_of(self.topic, self.host, begin, end)

    def allowed(self, second: int, begin: float) -> int:
        return allowed(self.divisions, self.groups(begin, begin + 1), second)


# --------------------------------------------------------------------------------------------------------------- window


def _used(here: _Here, found: Sequence[Wait]) -> Iterator[Violation]:
    """Report seconds with a waiting message throughout, in which fewer messages started than the quota allows."""
    seconds = Counter(start.started_us // MICRO for start in here.starts)
    through: dict[int, Wait] = {}
    for wait in found:
        for second in range(math.ceil(wait.since_us / 1e6 + WAITED_S), wait.start.started_us // MICRO):
            if not here.waits.owned(wait.start.group, here.host, *_span(wait, second)):
                continue  # it waited on a former owner
            if second not in through or here.waits.is_excused(through[second], *_span(through[second], second)):
                through[second] = wait
    had = might = 0
    worst: tuple[int, int, Wait] | None = None
    for second, wait in sorted(through.items()):
        begin, end = _span(wait, second)
        may = here.allowed(second, begin)
        if seconds[second] < may and here.waits.is_excused(wait, begin, end):
            continue
        had, might = had + min(may, seconds[second]), might + may
        if seconds[second] < may:
            worst = worst or (second, may, wait)
    if had < USED * might and worst is not None:
        second, may, wait = worst
        text = f"{had} of {might} starts used on {here.host} with a backlog; first in second {second}:"
        text += f" {seconds[second]} of {may}, while {wait.start.work.name} waited"
        yield Violation("use", wait.start.group, f"{text}, at {_span(wait, second)[0]:.3f} s")


def _span(wait: Wait, second: int) -> tuple[float, float]:
    """Return begin and end of a second of a host's clock, in true time."""
    begin = wait.start.at - (wait.start.started_us / 1e6 - second)
    return begin, begin + 1


def _at_once(here: _Here, found: Sequence[Wait]) -> Iterator[Violation]:
    """Who comes while the second has quota left starts in it, and at once."""
    by_second: dict[int, list[Start]] = {}
    for start in here.starts:
        by_second.setdefault(start.started_us // MICRO, []).append(start)
    for wait in found:
        start, since_s = wait.start, wait.since_us / 1e6
        second = int(since_s)
        if start.at <= wait.since + AT_ONCE_S or since_s + AT_ONCE_S >= second + 1:
            continue
        before = sum(other.number < start.number for other in by_second.get(second, ()))
        may = here.allowed(second, _span(wait, second)[0])
        if before < may and not here.waits.is_excused(wait, wait.since, start.at):
            yield _late(wait)
            return


def _late(wait: Wait) -> Violation:
    late_s = wait.start.at - wait.since
    text = f"{wait.start.work.name} started {late_s:.3f} s late with quota left, at {wait.since:.3f} s"
    return Violation("delay", wait.start.group, text)


# --------------------------------------------------------------------------------------------------------------- smooth


def _smooth(here: _Here, found: Sequence[Wait]) -> Iterator[Violation]:
    """As for a window; a token may have to be waited for."""
    times = [start.at for start in here.starts]
    spans: list[tuple[float, float, Wait]] = []
    for wait in sorted(found, key=lambda wait: wait.since):
        second, start = wait.since_us // MICRO, wait.start
        groups = here.groups(wait.since, start.at)
        if not (per_s := rate(here.divisions, groups, second)):
            continue
        in_force = max(
            (d for d in here.divisions if d.since_s <= second), key=lambda d: d.since_s, default=here.divisions[0]
        )
        pace = tokens.pace(in_force, groups, None)
        patience = AT_ONCE_S + (1 / per_s if pace.lifetime_s else 0.0)
        idle = not any(wait.since - 2 / per_s <= at < start.at for at in times)
        if idle and start.at > wait.since + patience and not here.waits.is_excused(wait, wait.since, start.at):
            yield _late(wait)
            return
        if spans and wait.since <= spans[-1][1]:
            begin, end, first = spans[-1]
            spans[-1] = begin, max(end, start.at), first
        else:
            spans.append((wait.since, start.at, wait))
    for begin, end, wait in spans:
        per_s = rate(here.divisions, here.groups(begin, end), wait.since_us // MICRO)
        had, might = sum(begin <= at < end for at in times), per_s * (end - begin)
        # One start at each end of the span may lie just outside.
        if end - begin >= SMOOTH_S and had < USED * might - 2 and not here.waits.is_excused(wait, begin, end):
            text = f"{had} of {might:.1f} starts used on {here.host} with a backlog, at {begin:.3f} s"
            yield Violation("use", wait.start.group, text)
            return
