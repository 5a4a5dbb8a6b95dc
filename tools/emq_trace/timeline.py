"""A message's life by the trail: one line for each event."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from emq.runtime import durations, plurals
from emq.topics.model import Topic
from emq.trail import events
from emq.trail.events import Event
from emq_proof import lives
from emq_trace import epochs
from emq_trace.waiting_reasons import moment


class TimelineEntry(NamedTuple):
    """Attributes:
    time_us: microseconds since 1970, by the clock of the host or producer that recorded it.
    detail: a text for people.
    """

    time_us: int
    event: str
    detail: str


CLAIMED = "claimed"
"""Name of a line without an event of its own: a message came into its host's buffer, and was started later."""


def lines(of_message: Sequence[Event], of_group: Sequence[Event], topic: Topic | None) -> list[TimelineEntry]:
    """Return the lines in order of time.

    Args:
        of_message: events of the message in order of time, see `emq_trace.trail_lookup.of_message`.
        of_group: events of its group, see `emq_trace.trail_lookup.of_group`; may be empty.
        topic: gives the names of priorities; None if it was deleted.
    """
    found = [*_of_message(of_message, topic)]
    if of_message:
        found += [_of_group(e) for e in of_group if e.time_us >= of_message[0].time_us or e.until is not None]
    return sorted(found, key=lambda line: line.time_us)


def state(of_message: Sequence[Event], of_group: Sequence[Event] = ()) -> str:
    """Return the message's state by the trail: the name of the event that ended it, `started`, or `waiting`.

    The text is empty if the trail has no event of the message. A merge changes nothing, since the other message waits.
    """
    now = ""
    for e in of_message:
        if e.event == events.STARTED or e.event in _ENDS:
            now = e.event
        elif e.event != events.MERGED or not now:
            now = "waiting"
    if now in _ENDS and sum(e.event == events.PUBLISHED for e in of_message) > 1:
        # A publish that began while its twin was delivered has an earlier time than the twin's end, and still waits.
        [life] = lives.of((_step(e) for e in of_message), [""]).values()
        now = "waiting" if life.is_open else now
    gone = [e.event for e in of_group if e.until is not None]
    return gone[-1] if gone and now in ("waiting", "") else now


def running(of_message: Sequence[Event]) -> Event | None:
    """Return the delivery that has begun and not ended; None if none runs."""
    last = None
    for e in of_message:
        if e.event == events.STARTED:
            last = e
        elif e.event in _ENDS or e.event in events.AGAIN:
            last = None
    return last


def owner(of_group: Sequence[Event]) -> str | None:
    """Return the group's owner by the highest epoch; None if that owner has released the group, or none is known."""
    owned = [e for e in of_group if e.event == events.OWNED]
    if not owned:
        return None
    last = max(owned, key=lambda e: e.epoch or 0)
    released = any(e.event == events.RELEASED and e.epoch == last.epoch for e in of_group)
    return None if released else last.source


_ENDS = frozenset((events.SETTLED, events.DEAD, events.RECALLED))


def _step(e: Event) -> lives.Step:
    copy = events.is_copy(e.id or "")
    return lives.Step(e.event, e.time_us, "copy" if copy else "", "", e.source, e.attempt, e.ready_us, e.published_us)


# -------------------------------------------------------------------------------------------------------------- details


def _of_message(found: Sequence[Event], topic: Topic | None) -> Iterator[TimelineEntry]:
    ready_us: int | None = None
    started: Event | None = None
    merged: list[Event] = []
    for e in found:
        if e.event == events.MERGED:
            merged.append(e)
            continue
        yield from _merges(merged)
        merged = []
        if e.event == events.PUBLISHED:
            begun_us = e.published_us or e.time_us
            ready_us = max(begun_us, (e.due_ms or 0) * 1000)
            yield TimelineEntry(begun_us, e.event, _published(e, begun_us, topic))
        elif e.event == events.STARTED:
            started = e
            if e.ready_us:
                yield TimelineEntry(e.ready_us, CLAIMED, f"by {e.source}{_epoch(e)}")
            since_us = ready_us or e.published_us
            waited = f", waited {durations.brief(us=e.time_us - since_us)}" if since_us else ""
            yield TimelineEntry(e.time_us, e.event, f"attempt {e.attempt} on {e.source}{waited}")
        else:
            ready_us = e.due_ms * 1000 if e.due_ms is not None else e.time_us
            yield TimelineEntry(e.time_us, e.event, _ended(e, started))
            started = None
    yield from _merges(merged)


def _merges(merged: Sequence[Event]) -> Iterator[TimelineEntry]:
    if merged:
        times = "once" if len(merged) == 1 else f"{len(merged):,} times"
        until = f", last {moment(merged[-1].time_us / 1000)}" if len(merged) > 1 else ""
        sources = sorted({e.source for e in merged})
        more = f" and {plurals.others(len(sources) - 3)}" if len(sources) > 3 else ""
        yield TimelineEntry(merged[0].time_us, events.MERGED, f"{times}{until}, by {', '.join(sources[:3])}{more}")


def _published(e: Event, begun_us: int, topic: Topic | None) -> str:
    parts = [f"by {e.source} into group {e.group}"]
    if topic is not None and e.priority is not None and e.priority < len(topic.priorities):
        parts.append(topic.priorities[e.priority])
    if e.offset is not None:
        parts.append(f"offset {e.offset}")
    if e.key is not None:
        parts.append(f"key {e.key!r}")
    if e.due_ms is not None and e.due_ms * 1000 > begun_us:
        parts.append(f"delayed until {moment(e.due_ms)}")
    return ", ".join(parts)


def _ended(e: Event, started: Event | None) -> str:
    took = f" after {durations.brief(us=e.time_us - started.time_us)}" if started is not None else ""
    if e.event == events.SETTLED:
        return f"on {e.source}{took}"
    if e.event == events.RETRIED:
        again = f"again {moment(e.due_ms)}" if e.due_ms is not None and e.due_ms * 1000 > e.time_us else "again at once"
        return f"{e.reason or 'failed'}{took} on {e.source}; {again}"
    if e.event == events.RETURNED:
        return f"{e.reason or 'not tried'}{took} on {e.source}; not counted as an attempt"
    if e.event == events.DEAD:
        return f"{e.reason or 'failed'}{took} on {e.source}"
    return f"by {e.source}"


def _epoch(e: Event) -> str:
    return "" if e.epoch is None else f", epoch {epochs.shown(e.epoch)}"


def _of_group(e: Event) -> TimelineEntry:
    if e.event == events.SKIPPED:
        return TimelineEntry(e.time_us, e.event, f"its offset was taken for a hole by {e.source}")
    if e.event == events.DROPPED:
        return TimelineEntry(e.time_us, e.event, f"on purpose ({e.reason or 'max_length'}), found by {e.source}")
    return TimelineEntry(e.time_us, e.event, f"group {e.group} by {e.source}{_epoch(e)}")
