"""Faults in when a message was started, expired or died (T, X)."""

from __future__ import annotations

from collections.abc import Iterator

from emq.trail import events
from emq_proof import history_facts
from emq_proof.history import History
from emq_proof.history_facts import Fault, Step


def times(history: History) -> Iterator[Fault]:
    slack_us = history.facts.slack_us
    due = [s.due_ms for s in history.steps if s.event == events.PUBLISHED]
    due_us = min((ms * 1000 for ms in due if ms is not None), default=0) if None not in due else 0
    backoff: dict[int, Step] = {}
    met_a_crash = history.met_a_crash  # then an attempt may follow a failure that no host recorded
    for step in history.steps:
        if step.event == events.REPLAYED:
            backoff.clear()
            due_us = 0
        elif step.event == events.RETRIED and not met_a_crash:
            backoff[step.attempt or 0] = step
        elif step.event == events.STARTED:
            if step.attempt == 1 and step.time_us < due_us - slack_us:
                text = f"is due at {due_us} us and was started at {step.time_us}"
                yield history.fault("T", "started before it was due", step, text)
            failure = backoff.get((step.attempt or 1) - 1)
            for promise, kind, text in history_facts.of_start(step, failure, slack_us):
                yield history.fault(promise, kind, step, text)
        elif step.event == events.DEAD:
            for promise, kind, text in history_facts.of_death(step, history.facts.max_attempts, slack_us):
                yield history.fault(promise, kind, step, text)
