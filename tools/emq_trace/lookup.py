"""Puts together a message's trace from trail, catalog, store, checkpoints, and the hosts' snapshots."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import cast

from emq.host.statistics import HostStatistics
from emq.observe.opened import Opened
from emq.runtime import errors, extras, plurals
from emq.topics.model import Topic
from emq.trail import events
from emq.trail.events import Event
from emq_trace import timeline
from emq_trace.facts import Consumer, Facts, Failure, Place, Running, State, is_host
from emq_trace.places import QUEUE_SEARCH, Finder
from emq_trace.timeline import TimelineEntry
from emq_trace.waiting_reasons import Reason, why

Progress = Callable[[str, int, int], None]
"""Takes the name of the searched thing, the part that is done, and the whole."""

ENDED = frozenset((events.SETTLED, events.RECALLED, events.SKIPPED, events.DROPPED))


@dataclasses.dataclass(frozen=True, slots=True)
class Trace:
    """The life of a message.

    Attributes:
        id: the message's id.
        topic_name: name of its topic.
        topic: None if the topic is not in the catalog any more.
        state: end of its life (`settled`, `recalled`, `dead`, `skipped`, `dropped`, `finished`), or `running`,
            `waiting` or `unknown`.
        lines: its life by the trail, in order of time.
        events: the same events as recorded.
        place: its place in the store; None if the store was not asked, or does not have it.
        reasons: the reasons why it waits, the most important first.
        notes: limits of this answer, a line each.
    """

    id: str
    topic_name: str
    topic: Topic | None
    state: str
    lines: Sequence[TimelineEntry]
    events: Sequence[Event]
    place: Place | None = None
    reasons: Sequence[Reason] = ()
    notes: Sequence[str] = ()

    @property
    def is_unknown(self) -> bool:
        """True if neither the trail nor the store knows the message."""
        return self.state == "unknown" and not self.events


async def look_up(
    opened: Opened,
    message_id: str,
    topic_name: str | None,
    hosts: Sequence[HostStatistics],
    on_progress: Progress = lambda _what, _done, _all: None,
    *,
    by_identity: bool = False,
) -> Trace:
    """Return a message's life and, if it goes on, its place and the reasons why it waits. Changes nothing.

    Args:
        opened: an open app.
        message_id: the id that `publish` returned, or that a handler, a dead letter or the trail shows.
        topic_name: the message's topic; needed if there is no trail, or if several topics have the id.
        hosts: snapshots of the live hosts.
        on_progress: takes the progress of a long search.
        by_identity: `message_id` is the identity of one message.

    Raises:
        UnknownTopic: there is no such topic; correct the name.
        InvalidSettings: the trail's directory does not exist.
        EMQError: there is neither a trail nor a topic to look in; the text says what to add.
    """
    message_id = events.origin(message_id)
    directory = opened.settings.trail
    if not directory and topic_name is None:
        raise errors.EMQError(
            f"there is no trail to look {message_id!r} up in (the setting trail is empty); "
            "add --topic to ask the store alone"
        )
    found = await _in_trail(directory, message_id, on_progress, by_identity) if directory else []
    name = _topic_of(message_id, found, topic_name, directory)
    found = [e for e in found if e.topic == name]
    uid, found, others = _one_of(message_id, found)
    topic = await _topic(opened, name, known=bool(found))
    if topic is None or timeline.state(found) in ENDED:
        notes = () if topic is not None else (f"topic {name!r} was deleted with its messages",)
        lines = timeline.lines(found, [], topic)
        return Trace(uid, name, topic, timeline.state(found), lines, found, notes=(*notes, *others))
    of_group = await _of_group(directory, found, on_progress) if found else []
    by_identity = by_identity or bool(others)
    trace = await _unfinished(opened, topic, uid, found, of_group, hosts, on_progress, by_identity)
    return dataclasses.replace(trace, notes=(*trace.notes, *others))


def _one_of(message_id: str, found: list[Event]) -> tuple[str, list[Event], Sequence[str]]:
    """Of the messages with an id, choose the last one that has not ended, else the last one.

    Returns:
        Its identity, its events, and notes that name the others.
    """
    lives: dict[str, list[Event]] = {}
    for e in found:
        lives.setdefault(events.origin(e.id or ""), []).append(e)
    if len(lives) < 2:
        return message_id, found, ()
    going_on = [uid for uid, life in lives.items() if timeline.state(life) not in {*ENDED, events.DEAD}]
    letters = [uid for uid, life in lives.items() if timeline.state(life) == events.DEAD]
    uid = (going_on or letters or [*lives])[-1]
    others = [each for each in lives if each != uid]
    more = f" and {plurals.others(len(others) - 3)}" if len(others) > 3 else ""
    note = f"{plurals.count(len(lives), 'message')} have the id {message_id!r}; trace another with --identity: "
    return uid, lives[uid], (note + ", ".join(others[-3:]) + more,)


async def _unfinished(
    opened: Opened,
    topic: Topic,
    message_id: str,
    found: Sequence[Event],
    of_group: Sequence[Event],
    hosts: Sequence[HostStatistics],
    on_progress: Progress,
    by_identity: bool,
) -> Trace:
    state, now_ms = timeline.state(found, of_group), opened.clock.now_us() // 1000
    lines, notes = timeline.lines(found, of_group, topic), []
    if state in ENDED:
        return Trace(message_id, topic.name, topic, state, lines, found)
    finder = Finder(
        *(opened.store, opened.checkpoints, topic, message_id, now_ms),
        lambda done, n: on_progress("the store", done, n),
        by_identity=by_identity,
    )
    place, whole = await _place(finder, topic, found)
    if not whole:
        notes.append(
            f"the search ended after {QUEUE_SEARCH:,} messages of the topic's queues; with a trail it knows the offset"
        )
    if not opened.settings.trail:
        notes.append("there is no trail (the setting trail is empty): only the store could be searched")
    elif not found:
        notes.append("the trail has no event of this message")
    facts = Facts(
        topic,
        now_ms,
        place,
        len(hosts),
        _consumers(topic, hosts),
        all(len(h.busiest) >= h.topics for h in hosts),
        timeline.owner(of_group),
        _running(found, hosts) if place is None or place.state in (State.WAITING, State.CLAIMED) else None,
        _failure(found),
    )
    state = _state(place, facts, state)
    if state == "unknown":
        notes.append(f"the store does not have it: {_ABSENT}")
    elif state == State.FINISHED:
        notes.append("its end is not in the trail (yet): a host writes its trail every second")
    return Trace(message_id, topic.name, topic, state, lines, found, place, why(facts), notes)


_ABSENT = "it was consumed, recalled or purged, is moving between two states, or was never stored"


def _state(place: Place | None, facts: Facts, told: str) -> str:
    if place is not None and place.state in (State.DEAD, State.FINISHED):
        return place.state.value
    if facts.running is not None:
        return "running"
    if place is not None:
        return "waiting"
    return events.DEAD if told == events.DEAD else "unknown"


# --------------------------------------------------------------------------------------------------------------- trail


async def _in_trail(directory: str, message_id: str, on_progress: Progress, by_identity: bool) -> list[Event]:
    found = await asyncio.to_thread(
        _trail_lookup().of_message,
        Path(directory),
        message_id,
        lambda done, n: on_progress("the trail", done, n),
        by_identity=by_identity,
    )
    return cast(list[Event], found)


async def _of_group(directory: str, found: Sequence[Event], on_progress: Progress) -> list[Event]:
    """Return the changes of the owner of the message's group, and the ranges that gave up its offset."""
    last = next((e for e in reversed(found) if e.event == events.PUBLISHED), found[-1])
    place = None if last.offset is None or last.offset < 0 else (last.priority or 0, last.offset)
    of_group = await asyncio.to_thread(
        _trail_lookup().of_group,
        Path(directory),
        last.topic,
        last.group,
        place,
        lambda done, n: on_progress("the trail", done, n),
    )
    return cast(list[Event], of_group)


def _trail_lookup() -> ModuleType:
    try:
        from emq_trace import trail_lookup
    except ModuleNotFoundError as exc:
        raise errors.EMQError(f"reading a trail needs the module {exc.name!r}; {extras.remedy('trail')}") from exc
    return trail_lookup


def _topic_of(message_id: str, found: Sequence[Event], wanted: str | None, directory: str) -> str:
    if wanted is not None:
        return wanted
    names = sorted({e.topic for e in found})
    if len(names) == 1:
        return names[0]
    if names:
        raise errors.EMQError(f"{message_id!r} is in the topics {', '.join(names)}; add --topic with one of them")
    raise errors.EMQError(
        f"the trail in {directory!r} has nothing about {message_id!r}; correct the id, or add --topic to ask the store"
    )


async def _topic(opened: Opened, name: str, *, known: bool) -> Topic | None:
    try:
        return await opened.catalog.get(name)
    except errors.UnknownTopic:
        if known:
            return None
        raise


# --------------------------------------------------------------------------------------------------------------- store


async def _place(finder: Finder, topic: Topic, found: Sequence[Event]) -> tuple[Place | None, bool]:
    """Return the message's place in the store, and False if the search ended early.

    A claimed entry of its lane or slot counts only if the trail says that the message went there.
    """
    published = next((e for e in reversed(found) if e.event == events.PUBLISHED), None)
    groups = _groups(topic, published)
    if topic.is_sorted:
        slot = await finder.in_slot()
        if slot is not None and slot.state is not State.CLAIMED:
            return slot, True
        lane = await finder.in_lanes(groups)
        if lane is not None and lane.state is not State.CLAIMED:
            return lane, True
        return (slot or lane) if found else None, True
    queue, whole = None, True
    if published is not None and published.offset is not None and published.group < topic.groups:
        queue = await finder.at_offset(published.group, published.priority or 0, published.offset)
        if queue.state is State.WAITING and not any(e.event in _TO_LANE for e in found):
            return queue, True
    lane = await finder.in_lanes(groups)
    if lane is not None and lane.state is State.CLAIMED:
        to_lane = any(e.event in _TO_LANE or (e is published and e.offset is None) for e in found)
        lane = lane if to_lane else None
    if lane is None and published is None:
        queue, whole = await finder.in_queues()
    return lane or queue, whole


_TO_LANE = frozenset((events.RETRIED, events.DEAD, events.REPLAYED))


def _groups(topic: Topic, published: Event | None) -> Sequence[int]:
    """Return the groups whose lanes may hold it: its own, or all if its own is not known or may be retired."""
    if published is None or topic.groups != topic.active_groups or published.group >= topic.groups:
        return range(topic.groups)
    return (published.group,)


# --------------------------------------------------------------------------------------------------------------- hosts


def _consumers(topic: Topic, hosts: Sequence[HostStatistics]) -> tuple[Consumer, ...]:
    return tuple(
        Consumer(
            h.host,
            t.in_flight,
            t.max_in_flight,
            t.bound,
            unreachable=h.store_unreachable or h.database_unreachable,
        )
        for h in hosts
        for t in h.busiest
        if t.name == topic.name
    )


def _running(found: Sequence[Event], hosts: Sequence[HostStatistics]) -> Running | None:
    started = timeline.running(found)
    if started is None:
        return None
    live = any(is_host(started.source, h.host) for h in hosts)
    return Running(started.source, started.time_us // 1000, started.attempt or 1, live)


def _failure(found: Sequence[Event]) -> Failure | None:
    """Return the last failed attempt; None if the message was put back since."""
    for e in reversed(found):
        if e.event == events.RETRIED and e.due_ms is not None:
            return Failure(e.attempt or 1, e.time_us // 1000, e.due_ms, e.reason or "")
        if e.event in (events.PUBLISHED, events.REPLAYED):
            return None
    return None
