"""The checkers behind the proof: each takes plain records of starts and ends, and names what broke a promise.

Nothing here reads files or needs pyarrow, so that a simulation can check what it did in the same way.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from emq.shares import MICRO, Share, share_of
from emq.trail.takeovers import Takeovers

MAX_EXAMPLES = 10

Quota = float | Share | Sequence[tuple[int, float | Share]]
"""Starts a second: a number, a group's share of a topic's quota, or a list of (from_us, either) in order of time;
before the first, nothing is allowed."""

Allowance = Callable[[float | Share, int], int]
"""How many starts a quota allows in an aligned second (integer seconds since the epoch)."""


class Start(NamedTuple):
    """One delivery. `name` is `<topic>/<id>`, `place` is `<topic>/<group>`; the rest as in the trail's columns."""

    time_us: int
    place: str
    topic: str
    priority: int
    offset: int
    name: str
    key: str | None
    attempt: int
    source: str
    ready_us: int
    published_us: int
    epoch: int | None = None


class End(NamedTuple):
    """How one delivery of a message with a key ended; `final` unless it is to be retried."""

    time_us: int
    name: str
    attempt: int
    source: str
    final: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Violations:
    """What broke one promise.

    Attributes:
        count: how often it was broken.
        examples: one line each, at most `MAX_EXAMPLES`.
    """

    count: int = 0
    examples: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.count > 0

    @classmethod
    def of(cls, lines: Iterable[str]) -> Violations:
        """Count the lines, keep the first few."""
        remaining = iter(lines)
        examples = tuple(itertools.islice(remaining, MAX_EXAMPLES))
        return cls(len(examples) + sum(1 for _ in remaining), examples)

    @classmethod
    def sum(cls, parts: Iterable[Violations]) -> Violations:
        """All of them together."""
        parts = tuple(parts)
        examples = itertools.chain.from_iterable(part.examples for part in parts)
        return cls(sum(part.count for part in parts), tuple(itertools.islice(examples, MAX_EXAMPLES)))


def window_allowance(quota: float | Share, second: int) -> int:
    """The counter's rule for pacing "window": quotas are exact in millionths, fractions carry over between seconds."""
    share = quota if isinstance(quota, Share) else share_of(quota)
    return share.allowance(second)


# ------------------------------------------------------------------------------------------------------------ Q: caps


def aligned_caps(
    starts: Sequence[Start], quotas: Mapping[str, Quota], allowance: Allowance, slack_us: int = 0
) -> Violations:
    """Seconds in which a group started more than its quota allows.

    In a second in which the quota changed, the one that was in force and allows most counts. The cap of a topic is
    judged like that of a group: name the topic, and all starts of its groups count together.

    Args:
        starts: in order of time.
        quotas: by `<topic>/<group>`, or by `<topic>` for the sum over its groups. What is not named is not checked.
        slack_us: by how much the clocks of two hosts may differ. A second in which several of them started is held
            against nobody if it is kept once one of their clocks is set by so much.
    """

    def lines() -> Iterable[str]:
        for place, found in _starts_of(starts, quotas).items():

            def allowed_in(second: int, quota: Quota = quotas[place]) -> int:
                in_force = _in_force(quota, second * MICRO, (second + 1) * MICRO)
                return max((allowance(each, second) for each in in_force), default=0)

            counts = Counter(time_us // MICRO for time_us, _ in found)
            for second, count in counts.items():
                allowed = allowed_in(second)
                if count > allowed and not within_slack(found, second, allowed_in, slack_us):
                    yield f"{place} started {count} in second {second}, {allowed} allowed"

    return Violations.of(lines())


SHIFTS = 10
"""How many differences of clocks are tried, each way."""


def within_slack(
    found: Sequence[tuple[int, str]], second: int, allowed_in: Callable[[int], int], slack_us: int
) -> bool:
    """Whether a second, and those beside it, are kept once the clock of one of its hosts is set right.

    Args:
        found: time and source of each start, in order of time.
    """
    beside = range(second - 1, second + 2)
    near = found[
        bisect_left(found, ((second - 1) * MICRO - slack_us, "")) : bisect_left(
            found, ((second + 2) * MICRO + slack_us, "")
        )
    ]
    sources = {source for time_us, source in near if time_us // MICRO == second}
    if not slack_us or len({source for _, source in near}) < 2:
        return False
    for mine in sources:
        for shift_us in (slack_us * n // SHIFTS for n in range(-SHIFTS, SHIFTS + 1)):
            moved = Counter((time_us + shift_us * (source == mine)) // MICRO for time_us, source in near)
            if all(moved[each] <= allowed_in(each) for each in beside):
                return True
    return False


def sliding_caps(starts: Sequence[Start], quotas: Mapping[str, Quota], bursts: Mapping[str, float]) -> Violations:
    """Stretches of one second, beginning anywhere, in which a smooth group started more than quota + burst.

    Args:
        starts: in order of time.
        quotas: see `aligned_caps`.
        bursts: tokens that may pile up, by the same names; only these are checked.
    """

    def lines() -> Iterable[str]:
        for place, found in _starts_of(starts, bursts).items():
            times = [time_us for time_us, _ in found]
            until = 0
            for i, time_us in enumerate(times):
                if time_us < until:
                    continue
                in_force = _in_force(quotas[place], time_us, time_us + MICRO)
                allowed = math.floor(max(map(float, in_force), default=0.0) + bursts[place] + 1e-9)
                if i + allowed < len(times) and times[i + allowed] < time_us + MICRO:
                    until = time_us + MICRO
                    count = bisect_left(times, until) - i
                    yield f"{place} started {count} within the second from {time_us} us, {allowed} allowed"

    return Violations.of(lines())


def _starts_of(starts: Sequence[Start], wanted: Mapping[str, object]) -> dict[str, list[tuple[int, str]]]:
    """Time and source of each start, by the places and topics that are wanted."""
    found: dict[str, list[tuple[int, str]]] = {name: [] for name in wanted}
    for start in starts:
        for name in (start.place, start.topic):
            if name in found:
                found[name].append((start.time_us, start.source))
    return found


def _in_force(quota: Quota, from_us: int, until_us: int) -> list[float | Share]:
    """The quotas that were in force at some time of [from_us, until_us)."""
    if isinstance(quota, int | float | Share):
        return [quota]
    return [
        value
        for (since, value), (till, _) in itertools.pairwise([*quota, (until_us, 0.0)])
        if since < until_us and till > from_us
    ]


# -------------------------------------------------------------------------------------------------------- P: priority


FETCH_S = 5.0
"""How soon an owner has what lies in a queue of its groups, unless it is full of what comes before."""

BEHIND_S = 1.0
"""For how long lower priorities must have been started before a higher one in the store, to be held against an owner
that could read either."""

OwnedUs = Callable[[str, str, int | None], int | None]
"""When this source (second) took this place (first) under this epoch; None if nothing tells."""


def inversions(
    starts: Sequence[Start],
    ends: Sequence[End],
    strict: Collection[str] | None,
    owned_us: OwnedUs = lambda _place, _source, _epoch: None,
) -> Violations:
    """Starts made while a message of higher priority was ready in the same group and had to wait.

    Judged by the clock of one host: of two, only one owns a group at a time, see `emq.trail.owners`.

    A message is ready once its owner has it in its buffer. One without a key is also held to be ready `FETCH_S` after
    it was published and its owner had its group, up to `BEHIND_S` before its owner did have it.

    Excused is a ready message with a key that an earlier started, unfinished message of that key holds back. Equal
    times count for the dispatcher.

    Args:
        starts: in order of time.
        ends: of messages with a key.
        strict: topics that serve strictly by priority; None for all.
        owned_us: without it, only buffers are judged.
    """
    groups: dict[tuple[str, str], list[Start]] = defaultdict(list)
    for start in starts:
        if strict is None or start.topic in strict:
            groups[start.place, start.source].append(start)
    finished: dict[str, int] = {}
    for end in ends:
        if end.final:
            finished[end.name] = max(end.time_us, finished.get(end.name, 0))
    return Violations.of(
        line
        for group in groups.values()
        if len({start.priority for start in group}) > 1
        for line in _group_inversions(group, finished, owned_us)
    )


_FINISHES, _LEAVES, _STARTS, _READY = range(4)
"""What happens at one time, in this order: a message that starts now does not wait any more, and one that gets ready
now has not waited yet."""


def in_store(start: Start, owned_us: int | None) -> tuple[int, int] | None:
    """From when until when a message lay in the store although its owner should have had it; None for never.

    Args:
        owned_us: when its owner took the group.
    """
    if owned_us is None or start.key is not None or start.attempt != 1 or start.offset < 0 or not start.published_us:
        return None
    since = max(start.published_us, owned_us) + round(FETCH_S * MICRO)
    until = (start.ready_us or start.time_us) - round(BEHIND_S * MICRO)
    return (since, until) if since < until else None


def _group_inversions(group: list[Start], finished: Mapping[str, int], owned_us: OwnedUs) -> Iterable[str]:
    events: list[tuple[int, int, int]] = []
    for i, start in enumerate(group):
        events += ((start.time_us, _LEAVES, i), (start.time_us, _STARTS, i))
        if start.ready_us:
            events.append((start.ready_us, _READY, i))
        if stored := in_store(start, owned_us(start.place, start.source, start.epoch)):
            events += ((stored[0], _READY, i), (stored[1], _LEAVES, i))
        if start.key is not None and start.name in finished:
            events.append((finished[start.name], _FINISHES, i))
    waiting: dict[int, _Waiting] = {p: _Waiting() for p in sorted({start.priority for start in group})}
    unfinished: dict[tuple[str, str | None], set[str]] = defaultdict(set)
    for time_us, what, i in sorted(events):
        start = group[i]
        if what == _READY:
            if start.time_us > time_us:
                waiting[start.priority].add(start)
        elif what == _LEAVES:
            waiting[start.priority].discard(start)
        elif what == _FINISHES:
            unfinished[start.topic, start.key].discard(start.name)
        else:
            for priority, ready in waiting.items():
                if priority < start.priority and (kept := ready.not_excused(start.topic, unfinished)):
                    yield (
                        f"{start.name} (priority {start.priority}) started at {time_us} us in {start.place} while "
                        f"{kept} (priority {priority}) was ready"
                    )
                    break
            if start.key is not None and finished.get(start.name, time_us + 1) > time_us:
                unfinished[start.topic, start.key].add(start.name)


class _Waiting:
    """Ready messages of one priority, by key, so that a backlog behind one key costs one look."""

    def __init__(self) -> None:
        self._by_key: dict[str | None, set[str]] = {}

    def add(self, start: Start) -> None:
        self._by_key.setdefault(start.key, set()).add(start.name)

    def discard(self, start: Start) -> None:
        if names := self._by_key.get(start.key):
            names.discard(start.name)
            if not names:
                del self._by_key[start.key]

    def not_excused(self, topic: str, unfinished: Mapping[tuple[str, str | None], set[str]]) -> str | None:
        """A message that nothing held back, or None."""
        for key, names in self._by_key.items():
            holders = unfinished.get((topic, key), ())
            if not holders:
                return next(iter(names))
            if len(holders) == 1:
                # A message does not hold itself back: between its attempts it is unfinished and may be ready.
                (holder,) = holders
                if holder in names:
                    return holder
        return None


# ------------------------------------------------------------------------------------------------------- K: key order


def overlaps(starts: Sequence[Start], ends: Sequence[End], takeovers: Takeovers | None = None) -> Violations:
    """Two messages of one key that ran at the same time.

    A delivery whose end is not in the trail counts as running until its message is started again, or until its dead
    host's group was taken over, or for ever.

    Args:
        starts: in order of time.
        ends: of messages with a key.
        takeovers: of the groups of hosts whose trails were cut short; None where there are none.
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
        running: dict[tuple[str, str], tuple[float, str]] = {}
        for start in starts:
            if start.key is None:
                continue
            until = runs_until(start)
            before, other = running.get((start.topic, start.key), (0.0, start.name))
            if before > start.time_us and other != start.name:
                yield f"{start.name} started at {start.time_us} us while {other} of the same key {start.key!r} ran"
            if until >= before:
                running[start.topic, start.key] = (until, start.name)

    return Violations.of(lines())


def disorder(starts: Sequence[Start], losses: Mapping[tuple[str, int], Sequence[int]] | None = None) -> Violations:
    """First deliveries of a key that did not follow the order of their queue.

    Args:
        starts: in order of time.
        losses: by `<topic>/<group>` and priority, when it was noticed that the queue's store had come back from a crash
            without its last messages. Their offsets are given out again, so the order begins again there.
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
            if before is not None and before.offset > start.offset and not again:
                yield (
                    f"{start.name} (offset {start.offset}) of key {start.key!r} was started after "
                    f"{before.name} (offset {before.offset})"
                )
            else:
                latest[queue] = start

    return Violations.of(lines())
