"""Faults in how often a message was delivered, and by which attempts (D, X)."""

from __future__ import annotations

import math
from collections.abc import Iterator

from emq.runtime import plurals
from emq.trail import events
from emq_proof.history import History
from emq_proof.history_facts import Fault, Step
from emq_proof.lives import LEARN_US


def ended_twice(history: History) -> Iterator[Fault]:
    for delivery in history.deliveries:
        ends = {step.event: step for step in delivery.ends}
        if len(delivery.ends) < 2:
            continue
        last = delivery.ends[-1]
        if events.SETTLED in ends and events.DEAD in ends:
            yield history.fault("X", "settled and dead", last, "was settled, and is dead by the same delivery")
        elif ends.keys().isdisjoint(events.AGAIN):
            continue
        elif events.SETTLED in ends:
            yield history.fault("D", "settled and put back", last, "was settled, and put back by the same delivery")
        elif events.DEAD in ends:
            yield history.fault("X", "dead and put back", last, "died, and was put back by the same delivery")
        else:
            text = f"was put back {len(delivery.ends)} times by one delivery"
            yield history.fault("E", "ended twice", last, text)


def started_twice(history: History) -> Iterator[Fault]:
    """Yield attempts that one owner started twice under one epoch: it forgot the first start."""
    seen: dict[tuple[object, ...], Step] = {}
    reported: set[tuple[object, ...]] = set()
    replays: dict[tuple[object, ...], list[Step]] = {}
    for step in history.steps:
        if step.event == events.RETURNED:  # the next start is the same attempt, on purpose
            for who in [who for who in seen if (who[1], who[3]) == (step.source, step.attempt)]:
                del seen[who]
        elif step.event == events.STARTED and step.offset == -1:
            who = step.group, step.source, step.epoch, step.attempt
            before = seen.get(who)
            seen[who] = step
            mine = replays.setdefault(who, history.of(events.REPLAYED))  # each allows each attempt once more
            if before is None or who in reported or _is_between(history, mine, before, step):
                continue
            reported.add(who)
            text = f"was started twice from its lane as attempt {step.attempt} by {step.source}"
            yield history.fault("D", "started twice", step, text)


def after_its_end(history: History) -> Iterator[Fault]:
    """Yield deliveries after the message's death, and deaths after its success, without a replay in between."""
    over: Step | None = None
    replays = history.of(events.REPLAYED)
    for step in history.steps:
        if step.event == events.REPLAYED:
            over = None
        elif step.event == events.STARTED:
            if over is not None and over.event == events.DEAD:
                if any(history.before(over, replay) and history.before(replay, step) for replay in replays):
                    continue
                text = f"died at {over.time_us} us, and was started again without a replay"
                yield history.fault("X", "delivered after its death", step, text)
                over = None
        elif step.event in (events.SETTLED, events.DEAD):
            was_settled = over is not None and over.event == events.SETTLED and step.event == events.DEAD
            if over is not None and was_settled and (step.source, step.attempt) != (over.source, over.attempt):
                text = f"was settled at {over.time_us} us, and is dead"
                yield history.fault("X", "settled and dead", step, text)
            over = step


def after_its_success(history: History) -> Iterator[Fault]:
    """Yield deliveries after a settle that were not settled again; `emq_proof.outcomes` counts the others."""
    settled = [end for each in history.deliveries for end in each.ends if end.event == events.SETTLED]
    for delivery in history.deliveries:
        start = delivery.start
        before = [end for end in settled if history.before(end, start, -history.facts.slack_us)]
        if before and all(end.event != events.SETTLED for end in delivery.ends):
            text = f"was settled at {before[-1].time_us} us, and was started again"
            yield history.fault("D", "delivered after its success", start, text)


def after_its_recall(history: History) -> Iterator[Fault]:
    """Yield deliveries after the message was recalled."""
    recalls = history.of(events.RECALLED)
    for delivery in history.deliveries if recalls else ():
        start = delivery.start
        before = [recall for recall in recalls if recall.time_us < start.time_us - LEARN_US - history.facts.slack_us]
        if before:
            text = f"was recalled at {before[-1].time_us} us, and was started"
            yield history.fault("D", "delivered after its recall", start, text)


def missing(history: History) -> Iterator[Fault]:
    """Yield attempts that follow no failure."""
    told = 0
    for start in history.of(events.STARTED):
        made = max(told, _failures(history, start, history.facts.slack_us))
        if (start.attempt or 1) > made + 1:
            text = f"was started as attempt {start.attempt}, and attempt {made + 1} has no failure"
            yield history.fault("X", "an attempt is missing", start, text)
            told = start.attempt or 1


def not_counted(history: History) -> Iterator[Fault]:
    """Yield attempts from the lane whose number is not above that of the last failed attempt."""
    for start in history.of(events.STARTED):
        made = _failures(history, start, -history.facts.slack_us) if start.offset == -1 else 0
        if (start.attempt or 1) <= made:
            text = f"failed at attempt {made}, and was started as attempt {start.attempt} after that"
            yield history.fault("X", "a failure is not counted", start, text)


def not_dead(history: History) -> Iterator[Fault]:
    """Yield a replay without a death before it."""
    if not history.of(events.PUBLISHED):
        return  # the message may have died before the trail began
    replays, deaths = history.of(events.REPLAYED), history.of(events.DEAD)
    for n, replay in enumerate(replays):
        if sum(death.time_us <= replay.time_us + history.facts.slack_us for death in deaths) <= n:
            yield history.fault(
                "X",
                "replayed and not dead",
                replay,
                f"was replayed {plurals.count(n + 1, 'time')}, and was not dead",
            )
            return


def _is_between(history: History, replays: list[Step], before: Step, after: Step) -> bool:
    """Return whether one of the replays may have been between two steps; takes it out of the list."""
    for replay in replays:
        if history.before(before, replay) and history.before(replay, after):
            replays.remove(replay)
            return True
    return False


def _failures(history: History, start: Step, slack_us: int) -> int:
    """Return the highest attempt that failed before a start, since the last replay; 0 if none did.

    Args:
        slack_us: above 0 counts failures of lower attempts that may have been before the start; below 0 counts all
            failures that surely were.
    """
    lower = start.attempt or 1 if slack_us >= 0 else math.inf
    replays = [replay for replay in history.of(events.REPLAYED) if history.before(replay, start)]
    since_us = max((replay.time_us for replay in replays), default=-slack_us) - slack_us
    failures = (step for step in history.of(events.RETRIED) if step.time_us >= since_us and (step.attempt or 0) < lower)
    return max((step.attempt or 0 for step in failures if history.before(step, start, slack_us)), default=0)
