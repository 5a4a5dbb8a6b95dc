"""Faults in when a message was started, or expired (T)."""

from __future__ import annotations

from collections.abc import Iterator

from emq.trail import events
from emq.trail.history import History
from emq.trail.history_facts import Fault, Step, expired_early, is_expiry


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
            yield from _start_times(history, step, due_us, backoff.get((step.attempt or 1) - 1))
        elif is_expiry(step.event, step.reason) and expired_early(step.time_us, step.until, slack_us):
            text = f"expired at {step.time_us} us, and might have lived until {step.until}"
            yield history.fault("T", "expired too early", step, text)


def _start_times(history: History, start: Step, due_us: int, failure: Step | None) -> Iterator[Fault]:
    slack_us = history.facts.slack_us
    if start.attempt == 1 and start.time_us < due_us - slack_us:
        text = f"is due at {due_us} us and was started at {start.time_us}"
        yield history.fault("T", "started before it was due", start, text)
    if failure is not None and failure.due_ms is not None:
        early_us = 0 if failure.source == start.source else slack_us
        if start.time_us // 1000 < failure.due_ms - early_us // 1000:
            text = f"was to be tried again at {failure.due_ms * 1000} us and was started at {start.time_us}"
            yield history.fault("T", "retried too early", start, text)
    if start.until and start.time_us >= start.until:
        text = f"expired at {start.until} us and was started at {start.time_us}"
        yield history.fault("T", "started after it expired", start, text)
