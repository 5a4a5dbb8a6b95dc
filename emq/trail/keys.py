"""Key order (K): messages of one key run one at a time, first deliveries in the order of their queue.

Between two hosts, a violation counts only if it lasts longer than their clocks may differ.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from emq.trail.checks import End, Start, Violations
from emq.trail.takeovers import Takeovers
from emq.trail.waiting import Waiting


def overlaps(
    starts: Sequence[Start], ends: Sequence[End], takeovers: Takeovers | None = None, slack_us: int = 0
) -> Violations:
    """Return the pairs of messages of one key that ran at the same time.

    A delivery whose end is not in the trail counts as running until its message is started again, or until another host
    takes the dead host's group, or for ever.

    Args:
        starts: all starts, in order of time.
        ends: the ends of messages with a key.
        takeovers: takeovers of the groups of hosts whose trails were cut short; None for none.
        slack_us: largest difference between the clocks of two hosts.
    """
    takeovers = takeovers or Takeovers()
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
        over_us = takeovers.over_us(start.source, start.place, start.time_us)
        return min(again[i], over_us) if i < len(again) else over_us

    def lines() -> Iterable[str]:
        running: dict[tuple[str, str], tuple[float, str, str]] = {}
        for start in starts:
            if start.key is None:
                continue
            until = runs_until(start)
            before, other, source = running.get((start.topic, start.key), (0.0, start.name, start.source))
            slack = 0 if source == start.source else slack_us
            if before - slack > start.time_us and other != start.name:
                yield f"{start.name} started at {start.time_us} us while {other} of the same key {start.key!r} ran"
            if until >= before:
                running[start.topic, start.key] = (until, start.name, start.source)

    return Violations.of(lines())


def disorder(
    starts: Sequence[Start],
    losses: Mapping[tuple[str, int], Sequence[int]] | None = None,
    slack_us: int = 0,
    waiting: Iterable[Waiting] = (),
) -> Violations:
    """Return the first deliveries of a key that did not follow the order of their queue.

    Args:
        starts: all starts, in order of time.
        losses: by `<topic>/<group>` and priority, the times when a host noticed that the store had come back from a
            crash without the queue's last messages. The store gives their offsets out again, so the order begins again.
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
            again = before is not None and any(
                before.time_us <= at_us <= start.time_us for at_us in noticed.get(queue[:2], ())
            )
            if before is not None and before.source != start.source:
                again |= start.time_us - before.time_us <= slack_us
            if before is not None and before.offset > start.offset and not again:
                yield (
                    f"{start.name} (offset {start.offset}) of key {start.key!r} was started after "
                    f"{before.name} (offset {before.offset})"
                )
            else:
                latest[queue] = start
        for message in waiting:
            if message.key is not None:
                passed = latest.get((message.place, message.priority, message.key))
                if passed is not None and passed.offset > message.offset:
                    yield (
                        f"{message.name} (offset {message.offset}) of key {message.key!r} was never started, and "
                        f"{passed.name} (offset {passed.offset}) was"
                    )

    return Violations.of(lines())
