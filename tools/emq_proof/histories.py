"""Judge the history of one message: its events must fit together and keep the promises that one message can break.

This is for ids that are published once. The rules: a delivery has one start and one end, by one host (E, O). Each
attempt follows the failure of the one before, and is made once (X, D). A message is settled, or dead, or recalled, or
waits, never two of these (D, X). It is delivered from the place, with the priority and with the key of its publish (D,
M, P, K). It starts neither before it is due nor after it expired (T).

A host that was killed, or lost its group, may have acted without saving progress or a record. So it is no violation if
a message is repeated that ended only seconds before, or that a store had lost. Events of two sources may be in either
order if their clocks may differ by as much.

This module reads no files and does not need pyarrow, so that an audit on many machines can use it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from emq.trail import events
from emq_proof import history_deliveries, history_places, history_times
from emq_proof.history import History
from emq_proof.history_facts import Facts, Fault, Step

_FIRST = {events.PUBLISHED: 0, events.MERGED: 0, events.STARTED: 1}


def in_order(steps: Iterable[Step]) -> list[Step]:
    """Return the steps by time; at one time publishes, then starts, then ends."""
    return sorted(steps, key=lambda step: (step.time_us, _FIRST.get(step.event, 2)))


def is_plain(steps: Sequence[Step]) -> bool:
    """Return whether a message was just published, started once and settled, so that no further check is needed."""
    if len(steps) != 3:
        return False
    publish, start, end = steps
    return (
        publish.event == events.PUBLISHED
        and start.event == events.STARTED
        and end.event == events.SETTLED
        and start.attempt == end.attempt == 1
        and start.source == end.source
        and start.group == end.group == publish.group
        and start.offset == end.offset
        and start.time_us >= (publish.published_us or publish.time_us)
        and start.priority == publish.priority == end.priority
        and start.key == publish.key
        and (start.offset == publish.offset if publish.offset is not None else start.offset == -1)
        and publish.due_ms is None
        and start.until is None
    )


def judge(name: str, steps: Sequence[Step], facts: Facts) -> Iterator[Fault]:
    """Yield all faults of a message.

    Args:
        name: name of the message in the texts of the faults.
        steps: its events, as `in_order` returns them.
        facts: facts beyond the message's own events.
    """
    if is_plain(steps):
        return
    history = History(name, steps, facts)
    if history.facts.is_complete:
        yield from history_places.strays(history)
        yield from history_places.places(history)
        yield from history_places.before_its_publish(history)
        if not history.met_a_crash:
            yield from history_deliveries.missing(history)
            yield from history_deliveries.not_dead(history)
            yield from () if history.may_be_two else history_places.mismatches(history)
    if not history.may_be_two:
        yield from history_deliveries.ended_twice(history)
        if not history.met_a_crash:
            yield from history_deliveries.started_twice(history)
            yield from history_deliveries.after_its_end(history)
            yield from history_deliveries.after_its_success(history)
            yield from history_deliveries.after_its_recall(history)
            yield from history_deliveries.not_counted(history)
    yield from history_times.times(history)
