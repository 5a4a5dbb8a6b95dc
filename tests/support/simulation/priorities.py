"""P: strict priority, in the buffers at all times and behind them in calm ones."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence

from emq_proof import checks, priorities
from support.simulation.evidence import Evidence, Start
from support.simulation.rules import Rules
from support.simulation.violation import Violation
from support.simulation.waits import Wait, Waits

STEP = 4
"""Between the places of two starts, for what happens in between."""

FETCHED_S = 0.5
"""After which a message in the store has to be in front of lower ones. Wake-up and read take no time in calm times;
half a second leaves room for one read that was under way, and is less than what a lost wake-up costs."""


def judge(evidence: Evidence, rules: Rules, waits: Waits) -> Iterator[Violation]:
    yield from _in_buffers(evidence, rules)
    for group, found in waits.by_group.items():
        if rules.plans[group.rpartition("/")[0]].is_strict:
            yield from _in_store(group, found, waits.starts[group])


def _in_buffers(evidence: Evidence, rules: Rules) -> Iterator[Violation]:
    """No lower start while a higher message is in the same buffer, whatever happens around it."""
    places: dict[tuple[str, str, int], list[Start]] = defaultdict(list)
    for start in evidence.starts:
        if rules.plans[start.work.topic].is_strict:
            places[start.group, start.host, start.epoch].append(start)
    for (group, _, _), starts in places.items():
        found = priorities.inversions(*_in_order(evidence, starts), None)
        for line in found.examples[:1]:
            yield Violation("P", group, f"{line}; {found.count} in all; times are places among its starts")


def _in_order(evidence: Evidence, starts: Sequence[Start]) -> tuple[list[checks.Start], list[checks.End]]:
    """As the checker wants them, with places among the starts for times: in virtual time many starts have the same.

    What happened at the time of a start counts as behind all starts of that time, to the good of the dispatcher. A host
    says of a message whose key has moved that it was ready once nothing was left of the key in its former group.
    """
    times = [start.started_us for start in starts]
    found, ends = [], []
    failed: dict[str, str] = {}
    for place, start in enumerate(starts):
        work, ready = start.work, STEP * bisect_right(times, start.ready_us) - 1
        # Each delivery by itself: after a crash there may be two of one message, one in its queue and one in its lane.
        name = f"{work.name} (start {start.number})"
        found.append(
            checks.Start(
                *(STEP * place, start.group, work.topic, start.priority, start.offset, name, work.key or None),
                *(start.attempt, start.host, ready, 0),
            )
        )
        if not work.key:
            continue
        # One that has failed holds its key until the store knows what becomes of it, however long that takes; the next
        # start of the key tells that it does.
        if (before := failed.pop(work.key, None)) is not None:
            ends.append(checks.End(STEP * place - 2, before, 1, start.host, final=True))
        if (ended_us := evidence.ended_us.get(start.number)) is None:
            continue
        if evidence.ends[start.number][1]:
            ends.append(checks.End(STEP * bisect_right(times, ended_us) - 2, name, 1, start.host, final=True))
        else:
            failed[work.key] = name
    return found, ends


def _in_store(group: str, waits: list[Wait], starts: list[Start]) -> Iterator[Violation]:
    """No lower start long after a higher message was published."""
    times = [start.at for start in starts]
    for wait in waits:
        high = wait.start
        for low in starts[bisect_left(times, wait.since + FETCHED_S) :]:
            if low.number >= high.number:
                break
            if low.priority > high.priority and (low.host, low.epoch) == (high.host, high.epoch):
                text = f"{low.work.name} (priority {low.priority}) was started {low.at - wait.since:.3f} s after"
                text += f" {high.work.name} (priority {high.priority}) could have been, which started at {high.at:.3f}"
                yield Violation("P", group, f"{text}, at {low.at:.3f} s")
                return
