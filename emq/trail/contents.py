"""Find faults of messages whose ids follow from their contents.

These are deliveries before the due time or after the expiry, retries before the backoff is over (T), deaths with
attempts left (X), and ends of deliveries that their host did not start (E).

Such an id may be published several times, and a delivery may be for any of these publishes, see `emq.trail.lives`. A
delivery is too early if every publish since the last delivery is due later. A publish that began after the host had
claimed a message belongs to a later delivery.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow.compute as pc  # type: ignore[import-untyped]

from emq.trail import events, history_facts
from emq.trail.history_facts import Facts, Fault
from emq.trail.lives import Step
from emq.trail.rows import lists, only

_ENDS = (events.SETTLED, *events.AGAIN, events.DEAD)


def judge(steps: Iterable[Step], facts: Facts) -> Iterator[Fault]:
    """Yield the faults of one origin, but for deliveries before the due time, see `too_early`.

    Args:
        steps: its events in `emq.trail.lives.ORDER`; each is dropped before the next one is taken.
        facts: facts beyond these events. Only a complete trail shows ends that no host started.
    """
    running: Counter[tuple[str, int | None]] = Counter()
    failures: dict[str, dict[int | None, Step]] = defaultdict(dict)  # by copy and attempt
    for step in steps:
        who = step.source, step.attempt
        if step.event == events.STARTED:
            running[who] += 1
            failure = failures.get(step.name, {}).get((step.attempt or 1) - 1)
            if failure is not None and facts.crashes(step.group or 0):
                failure = None  # the host that crashed may have failed at a later attempt, without a record
            for found in history_facts.of_start(step, failure, facts.slack_us):
                yield _fault(*found, step)
        elif step.event in _ENDS:
            if running[who]:
                running[who] -= 1
            elif facts.is_complete and not history_facts.needs_no_start(step.event, step.reason):
                text = f"was {step.event} by {step.source}, which did not start its attempt {step.attempt}"
                yield _fault("E", "ended without a start", text, step)
        if step.event == events.RETRIED and step.name != step.origin:
            failures[step.name][step.attempt] = step
        elif step.event in (events.SETTLED, events.DEAD):
            failures.pop(step.name, None)
        if step.event == events.DEAD:
            for found in history_facts.of_death(step, facts.max_attempts, facts.slack_us):
                yield _fault(*found, step)


def _fault(promise: str, kind: str, text: str, step: Step) -> Fault:
    return Fault(promise, kind, f"{step.name} {text}", step.time_us, step.source, step.group or 0)


def too_early(table: Any, slack_us: int) -> Iterator[str]:
    """Yield one line for each delivery before the due time.

    Args:
        table: the trail, with a column `name`: `<topic>/<id>`.
        slack_us: largest difference between the clocks of two machines.
    """
    rows = only(table, events.PUBLISHED, events.MERGED, events.DOUBTED, events.STARTED)
    rows = rows.filter(pc.match_substring_regex(rows["id"], events.SLOT_ID))
    if not pc.any(pc.is_valid(rows["due_ms"])).as_py():
        return
    begun: dict[str, list[int | None]] = defaultdict(list)
    claimed = pc.if_else(pc.greater(rows["ready_us"], 0), rows["ready_us"], None)
    begun_us = pc.if_else(pc.equal(rows["event"], events.STARTED), claimed, rows["published_us"])
    rows = rows.append_column("begun_us", pc.coalesce(begun_us, rows["time_us"]))
    ordered = rows.sort_by([("begun_us", "ascending"), ("event", "ascending")])
    columns = lists(ordered, "event", "name", "time_us", "due_ms", "attempt")
    for event, name, time_us, due_ms, attempt in zip(*columns, strict=True):
        if event == events.STARTED:
            due = begun.pop(name, [None])
            if attempt == 1 and None not in due:
                due_us = min(ms * 1000 for ms in due if ms is not None)
                if time_us < due_us - slack_us:
                    yield f"{name} is due at {due_us} us and was started at {time_us}"
        else:
            begun[name].append(due_ms if event == events.PUBLISHED else None)
