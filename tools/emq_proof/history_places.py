"""Faults in where a message was: its ends against its starts (E, O), its starts against its publish (D, M, P, K)."""

from __future__ import annotations

from collections.abc import Iterator

from emq.trail import events
from emq_proof.history import History
from emq_proof.history_facts import Fault, Step


def strays(history: History) -> Iterator[Fault]:
    """Yield ends without a start by the same host."""
    for end in history.strays:
        same = [d.start for d in history.deliveries if d.start.attempt == end.attempt]
        if any(start.source == end.source for start in same):
            text = f"was {end.event} by {end.source} at {end.time_us} us, before it was started"
            yield history.fault("E", "ended before its start", end, text)
        elif same:
            text = f"was started by {same[-1].source}, and {end.event} by {end.source}"
            yield history.fault("O", "ended by another host", end, text)
        else:
            text = f"was {end.event} by {end.source}, and attempt {end.attempt} was never started"
            yield history.fault("E", "ended without a start", end, text)


def mismatches(history: History) -> Iterator[Fault]:
    """Yield ends that tell of another place than their start."""
    for delivery in history.deliveries:
        start = delivery.start
        for end in delivery.ends:
            if (end.group, end.priority, end.offset) != (start.group, start.priority, start.offset):
                text = f"was started from {_place(start)}, and {end.event} in {_place(end)}"
                yield history.fault("E", "ended in another place", end, text)


def before_its_publish(history: History) -> Iterator[Fault]:
    """Yield deliveries before the message was published."""
    publishes = [step.published_us or step.time_us for step in history.of(events.PUBLISHED)]
    if publishes and not history.may_be_two:
        for start in history.of(events.STARTED):
            if start.time_us < min(publishes) - history.facts.slack_us:
                text = f"was published from {min(publishes)} us on, and started at {start.time_us} us"
                yield history.fault("E", "started before its publish", start, text)
                return


def places(history: History) -> Iterator[Fault]:
    publishes = [step for step in history.steps if step.event == events.PUBLISHED]
    if not publishes:
        return
    starts = [d.start for d in history.deliveries]
    priorities = {step.priority for step in publishes}
    if wrong := [start for start in starts if start.priority not in priorities]:
        text = f"was published with priority {publishes[0].priority} and started with {wrong[0].priority}"
        yield history.fault("P", "another priority", wrong[0], text)
    keys = {step.key for step in publishes}
    if wrong := [start for start in starts if start.key not in keys]:
        text = f"was published with key {publishes[0].key!r} and started with {wrong[0].key!r}"
        yield history.fault("K", "another key", wrong[0], text)
    if history.may_be_two:
        return
    first: dict[tuple[int, int | None], Step] = {}
    for start in starts:
        if start.offset is not None and start.offset >= 0:
            first.setdefault((start.group, start.offset), start)
    if len(first) > 1:
        places = ", ".join(f"{offset} of group {group}" for group, offset in sorted(first))
        text = f"was published once and delivered from the offsets {places}"
        yield history.fault("D", "from two places", [*first.values()][-1], text)
        return
    known = {(step.group, step.offset) for step in publishes}
    told = publishes[0].offset
    for (group, offset), start in first.items():
        if (group, offset) not in known:
            where = "into a lane" if told is None else f"at offset {told}"
            text = f"was published {where} and delivered from {offset} of group {group}"
            yield history.fault("M", "from another offset", start, text)
    for start in starts if all(offset is not None for _, offset in known) else ():
        moved = any(history.before(step, start) for step in history.of(events.RETRIED, events.REPLAYED, events.DEAD))
        if start.offset == -1 and start.attempt == 1 and not moved and not history.met_a_crash:
            text = f"was published at offset {told} and delivered from a lane, into which nothing had put it"
            yield history.fault("M", "from another offset", start, text)
            return


def _place(step: Step) -> str:
    return f"group {step.group}, priority {step.priority}, offset {step.offset}"
