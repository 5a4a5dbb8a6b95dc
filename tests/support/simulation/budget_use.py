"""Q of budgets: all topics together keep to the budget in every second, and a backlog uses it."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from emq.topics.shares import MICRO, Division
from support.simulation.budgeted import CHANNEL, TENANT
from support.simulation.evidence import Evidence, Start
from support.simulation.rules import Rules
from support.simulation.sleeps import may_lag
from support.simulation.violation import Violation
from support.simulation.waits import COMING_S, Wait, Waits, allowed

USED = 0.99
WAITED_S = 0.15
"""What was ready so long before a second began counts as waiting in it."""


def judge(evidence: Evidence, rules: Rules, waits: Waits) -> Iterator[Violation]:
    """Report seconds in which a budget is exceeded, and budgets that a backlog does not use."""
    below: dict[str, list[Start]] = defaultdict(list)
    for start in evidence.starts:
        for budget in _budgets(rules, start.work.topic):
            below[budget].append(start)
    for budget, starts in below.items():
        yield from _cap(budget, starts, evidence, rules)
    yield from _use(below, rules, waits)


def _budgets(rules: Rules, topic: str) -> list[str]:
    """Return the budgets that a topic's starts count in, the nearest first; a budget's own starts count in it, too."""
    found = [topic] if topic in (TENANT, CHANNEL) else []
    plan = rules.plans[topic]
    while (above := plan.options.get("budget")) is not None:
        found.append(above)
        plan = rules.plans[above]
    return found


def _cap(budget: str, starts: Sequence[Start], evidence: Evidence, rules: Rules) -> Iterator[Violation]:
    """Check that all topics together start in every second at most what the budget allows, on all hosts."""
    divisions = rules.divisions[budget]
    created_late = any(plan.created_s for plan in rules.plans.values() if plan.options.get("budget") is not None)
    # Where hosts may have been kept from the catalog while it changed, only what they do once all is well again.
    lost = evidence.happened["database_shorter"] or evidence.happened["database_empty"]
    if lost or ((len(divisions) > 1 or created_late) and not rules.informed):
        starts = [start for start in starts if start.at >= rules.settled_at]
    elif len(divisions) > 1 or created_late:
        starts = [start for start in starts if not may_lag(evidence.sleeps, start.host, start.at)]
    seconds: dict[int, list[Start]] = defaultdict(list)
    for start in starts:
        seconds[start.started_us // MICRO].append(start)
    for second, found in seconds.items():
        most = [d for d in divisions if d.since_s <= second][-1].total.allowance(second)
        if len(found) > most:
            by = sorted({(start.host, start.group) for start in found})
            text = f"{len(found)} starts in second {second}, {most} allowed by the budget, by {by}"
            yield Violation("Q", budget, f"{text}, first at {found[0].at:.3f} s")


def _use(below: Mapping[str, Sequence[Start]], rules: Rules, waits: Waits) -> Iterator[Violation]:
    """Report a unit that does not use its budget while messages wait in it throughout a second.

    They may wait for their own topic's quota, or for any budget above.
    """
    counts = {budget: Counter(s.started_us // MICRO for s in starts) for budget, starts in below.items()}
    had = might = 0.0
    worst: tuple[str, str] | None = None
    own_starts = Counter(
        (group.rpartition("/")[0], start.started_us // MICRO) for group, its in waits.starts.items() for start in its
    )
    for (group, second), wait in sorted(_through(rules, waits).items()):
        topic = wait.start.work.topic
        begin = wait.start.at - (wait.start.started_us / 1e6 - second)
        groups = waits.groups_of(topic, wait.start.host, begin, begin + 1)
        own = own_starts[topic, second]
        if own >= allowed(rules.divisions[topic], groups, second) or waits.is_excused(wait, begin, begin + 1):
            continue
        if any(waits.has_moved(f"{budget}/0", begin, begin + 1) for budget in _budgets(rules, topic)):
            continue
        used = max(_part(counts[budget][second], rules.divisions[budget], second) for budget in _budgets(rules, topic))
        had, might = had + min(1.0, used), might + 1
        if used < 1:
            text = f"{wait.start.work.name} waited through second {second}, with {used:.2f} of its budget used"
            worst = worst or (group, f"{text}, at {begin:.3f} s")
    if worst is not None and had < USED * might:
        yield Violation("use", worst[0], f"{had:.1f} of {might:g} seconds used with a backlog; {worst[1]}")


def _through(rules: Rules, waits: Waits) -> dict[tuple[str, int], Wait]:
    """Return a wait for each group below a budget and each second through which a message waited in it."""
    found: dict[tuple[str, int], Wait] = {}
    for group, its in waits.by_group.items():
        plan = rules.plans[group.rpartition("/")[0]]
        if not plan.shares_budget or plan.is_smooth:
            continue
        for wait in its:
            for second in range(math.ceil(wait.since_us / 1e6 + WAITED_S), wait.start.started_us // MICRO):
                found.setdefault((group, second), wait)
    return found


def _part(starts: int, divisions: Sequence[Division], second: int) -> float:
    """Return the part of what a budget surely allows that was started, at most 1."""
    first = max((i for i, d in enumerate(divisions) if d.since_s <= second), default=0)
    known = [divisions[first], *(d for d in divisions[first + 1 :] if d.since_s <= second + COMING_S)]
    most = min(division.total.allowance(second) for division in known)
    return 1.0 if starts >= most else starts / most
