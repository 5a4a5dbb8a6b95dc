"""Key order (K): messages of one key run one at a time, first deliveries in the order of their queue.

Between two hosts, a violation counts only if it lasts longer than their clocks may differ.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from emq_proof.checks import End, Start, Violations
from emq_proof.history_facts import Loss, concerns
from emq_proof.waiting import Waiting

OverUs = Callable[[str, str, int], float]
"""Function from a source, a place and the time of a start to the time when the run is over at the latest."""


def overlaps(
    starts: Sequence[Start],
    ends: Sequence[End],
    over_us: OverUs = lambda _source, _place, _time_us: math.inf,
    slack_us: int = 0,
    doubtful: Collection[str] = (),
) -> Violations:
    """Return the pairs of messages of one key that ran at the same time.

    A delivery whose end is not in the trail counts as running until its message is started again, or until another host
    takes the dead host's group, or for ever.

    Args:
        starts: all starts, in order of time.
        ends: the ends of messages with a key.
        over_us: see `emq_proof.owners.Owners.over_us`.
        slack_us: largest difference between the clocks of two hosts.
        doubtful: groups (`<topic>/<group>`) of killed hosts, or of stores that have lost messages. A message that such
            a group repeats may run beside messages of its key, which has moved to another group.
    """
    doubtful_places = frozenset(doubtful)
    ended: dict[tuple[str, int, str], list[int]] = defaultdict(list)
    for end in ends:
        ended[end.name, end.attempt, end.source].append(end.time_us)
    for times in ended.values():
        times.sort()
    started: dict[str, list[int]] = defaultdict(list)
    for start in starts:
        if start.key is not None:
            started[start.name].append(start.time_us)

    def runs_until(start: Start) -> float:
        times = ended.get((start.name, start.attempt, start.source), ())
        if (i := bisect_left(times, start.time_us)) < len(times):
            return times[i]
        again = started[start.name]
        i = bisect_right(again, start.time_us)
        taken_us = over_us(start.source, start.place, start.time_us)
        return min(again[i], taken_us) if i < len(again) else taken_us

    def lines() -> Iterable[str]:
        running: dict[tuple[str, str | None], tuple[float, Start]] = {}
        # Of several at one time, those that ended at once come first: they may have ended before the others began.
        every = ((start.time_us, runs_until(start), start) for start in starts if start.key is not None)
        runs = sorted(every, key=itemgetter(0, 1))
        for _, until, start in runs:
            key = start.topic, start.key
            before, other = running.get(key, (0.0, start))
            slack = 0 if other.source == start.source else slack_us
            is_excused = other.place != start.place and not doubtful_places.isdisjoint((start.place, other.place))
            if before - slack > start.time_us and other.name != start.name and not is_excused:
                yield f"{start.name} started at {start.time_us} us while {other.name} of the same key {start.key!r} ran"
            if until >= before:
                running[key] = (until, start)

    return Violations.of(lines())


class Publish(NamedTuple):
    """One publish; times in microseconds since 1970: when it began, and when its publisher knew of its success."""

    begun_us: int
    done_us: int
    source: str


def overtaken(
    starts: Sequence[Start],
    publishes: Mapping[str, Publish],
    slack_us: int = 0,
    doubtful: Collection[str] = (),
) -> Violations:
    """Return the first deliveries of a key that a later message of the key had overtaken in another group.

    A key comes to another group when its topic's number of groups changes. Offsets of two groups cannot be compared, so
    this compares publishes of one priority, of which one was done before the other began.

    Args:
        starts: all starts, in order of time.
        publishes: by name, the publish of each message that was certainly published once.
        slack_us: largest difference between the clocks of two sources.
        doubtful: groups (`<topic>/<group>`) whose first deliveries may not all be recorded, or may be repeats.
    """

    def lines() -> Iterable[str]:
        seen: set[str] = set()
        # By topic, key, priority and group: of the messages started so far, the one whose publish began last.
        latest: dict[tuple[str, str, int], dict[str, tuple[int, Start]]] = defaultdict(dict)
        for start in starts:
            if start.key is None or start.attempt != 1 or start.offset < 0 or start.name in seen:
                continue
            seen.add(start.name)
            if (mine := publishes.get(start.name)) is None:
                continue
            groups = latest[start.topic, start.key, start.priority]
            for place, (begun_us, other) in groups.items() if start.place not in doubtful else ():
                same = publishes[other.name].source == mine.source
                late_us = 0 if other.source == start.source else slack_us
                follows = begun_us > mine.done_us + (0 if same else slack_us)
                if place != start.place and follows and start.time_us > other.time_us + late_us:
                    yield (
                        f"{start.name} of key {start.key!r} was started in {start.place} after {other.name} in "
                        f"{place}, which was published later"
                    )
                    break
            if start.place not in groups or groups[start.place][0] < mine.begun_us:
                groups[start.place] = mine.begun_us, start

    return Violations.of(lines())


def disorder(
    starts: Sequence[Start],
    losses: Mapping[tuple[str, int | None], Sequence[Loss]] | None = None,
    slack_us: int = 0,
    waiting: Iterable[Waiting] = (),
) -> Violations:
    """Return the first deliveries of a key that did not follow the order of their queue.

    Two hosts' starts are in the order of their epochs: a former owner starts nothing more when the next one has begun.
    Only if a start of a later owner seems to be first, clocks may differ.

    Args:
        starts: all starts, in order of time.
        losses: by `<topic>/<group>` and priority: a host noticed that the store had come back from a crash without
            the queue's last messages, or had the store forget the queue. The store gives the offsets out again, so the
            order begins again.
        slack_us: largest difference between the clocks of two hosts.
        waiting: messages that were never started.
    """
    noticed = losses or {}

    def lines() -> Iterable[str]:
        seen: set[str] = set()
        latest: dict[tuple[str, int, str], Start] = {}
        for start in starts:
            if start.key is None or start.attempt != 1 or start.offset < 0 or start.name in seen:
                continue
            seen.add(start.name)
            queue = (start.place, start.priority, start.key)
            before = latest.get(queue)
            begun = before is not None and any(
                before.time_us <= loss.at_us <= start.time_us for loss in noticed.get(queue[:2], ())
            )
            if before is not None and before.source != start.source and not _is_earlier(before, start):
                begun |= start.time_us - before.time_us <= slack_us
            if before is not None and before.offset > start.offset and not begun:
                yield (
                    f"{start.name} (offset {start.offset}) of key {start.key!r} was started after "
                    f"{before.name} (offset {before.offset})"
                )
            else:
                latest[queue] = start
        for message in waiting:
            if message.key is not None:
                passed = latest.get((message.place, message.priority, message.key))
                again = noticed.get((message.place, message.priority), ())
                if (
                    passed is not None
                    and passed.offset > message.offset
                    and not concerns(again, message.offset, passed.time_us, 0)
                ):
                    yield (
                        f"{message.name} (offset {message.offset}) of key {message.key!r} was never started, and "
                        f"{passed.name} (offset {passed.offset}) was"
                    )

    return Violations.of(lines())


def _is_earlier(one: Start, other: Start) -> bool:
    """Return whether one start was certainly before another one of its group, whatever the clocks say."""
    return one.epoch is not None and other.epoch is not None and one.epoch < other.epoch
