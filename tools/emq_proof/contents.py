"""Find faults of messages whose ids follow from their contents.

These are deliveries before the due time or after the expiry, retries before the backoff is over (T), deaths with
attempts left (X), and ends of deliveries that their host did not start (E).

Such an id may be published several times, and a delivery may be for any of these publishes, see `emq_proof.lives`. A
delivery is too early if every publish since the last delivery is due later. A publish that began after the host had
claimed a message belongs to a later delivery.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

from emq.trail import events
from emq_proof import history_facts
from emq_proof.history_facts import Facts, Fault
from emq_proof.lives import Step

_ENDS = (events.SETTLED, *events.AGAIN, events.DEAD)


def judge(steps: Iterable[Step], facts: Facts) -> Iterator[Fault]:
    """Yield the faults of one origin, but for deliveries before the due time, see `too_early`.

    Args:
        steps: its events in `emq_proof.lives.ORDER`; each is dropped before the next one is taken.
        facts: facts beyond these events. Only a complete trail shows ends that no host started.
    """
    running: Counter[tuple[str, str, int | None]] = Counter()
    failures: dict[str, dict[int | None, Step]] = defaultdict(dict)  # by copy and attempt
    for step in steps:
        who = step.name, step.source, step.attempt
        if step.event == events.STARTED:
            running[who] += 1
            failure = failures.get(step.name, {}).get((step.attempt or 1) - 1)
            if failure is not None and facts.crashes(step.group or 0):
                failure = None  # the host that crashed may have failed at a later attempt, without a record
            for found in history_facts.of_start(step, failure, facts.slack_us):
                yield _fault(*found, step)
        elif step.event in _ENDS:
            # A delivery whose message moved to its lane ends under the id of the copy.
            mine = next((each for each in (who, (step.origin, *who[1:])) if each in running), None)
            if mine is not None:
                running[mine] -= 1
                if not running[mine]:
                    del running[mine]
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


def too_early(steps: Iterable[Step], slack_us: int) -> Iterator[Fault]:
    """Yield the deliveries of one id before the due time.

    Args:
        steps: its events of `DUE`, by the time at which a publish began and at which a started message was claimed; at
            one time publishes come first.
        slack_us: largest difference between the clocks of two machines.
    """
    due_ms, may_be_due = None, False
    for step in steps:
        if step.event == events.PUBLISHED and step.due_ms is not None:
            due_ms = step.due_ms if due_ms is None else min(due_ms, step.due_ms)
        elif step.event != events.STARTED:
            may_be_due = True
        else:
            if step.attempt == 1 and due_ms is not None and not may_be_due and step.time_us < due_ms * 1000 - slack_us:
                text = f"is due at {due_ms * 1000} us and was started at {step.time_us}"
                yield _fault("T", "started before it was due", text, step)
            due_ms, may_be_due = None, False


DUE: Final = (events.PUBLISHED, events.MERGED, events.DOUBTED, events.STARTED)
"""Events that tell when a message is due. In the order of their names publishes come before starts."""
