"""The checkers behind the proof: each takes plain records of starts and ends, and lists the violations of a promise.

This module reads no files and does not need pyarrow, so that a simulation can check its own records in the same way.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from emq.topics.shares import MICRO, USE_S, Share, share_of
from emq.trail import skew
from emq.trail.waiting import Waiting

MAX_EXAMPLES = 10

Quota = float | Share | Sequence[tuple[int, float | Share]]
"""Starts a second: a number, a group's share of a topic's quota, or a list of (from_us, number or share) in order of
time. Before the first time of a list, no start is allowed."""

Allowance = Callable[[float | Share, int], int]
"""Function from a quota and an aligned second (integer seconds since the epoch) to the number of starts allowed."""


class Start(NamedTuple):
    """One delivery. `name` is `<topic>/<id>`, `place` is `<topic>/<group>`; `emq.trail.schema` explains the others."""

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
    """The end of one delivery of a message with a key; `final` is False if the message is to be retried."""

    time_us: int
    name: str
    attempt: int
    source: str
    final: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Violations:
    """The violations of one promise.

    Attributes:
        count: the number of violations.
        examples: a line for each of the first violations, at most `MAX_EXAMPLES`.
    """

    count: int = 0
    examples: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.count > 0

    @classmethod
    def of(cls, lines: Iterable[str]) -> Violations:
        """Return the number of the lines, with the first few of them as examples."""
        remaining = iter(lines)
        examples = tuple(itertools.islice(remaining, MAX_EXAMPLES))
        return cls(len(examples) + sum(1 for _ in remaining), examples)

    @classmethod
    def sum(cls, parts: Iterable[Violations]) -> Violations:
        """Return the violations of all parts together."""
        parts = tuple(parts)
        examples = itertools.chain.from_iterable(part.examples for part in parts)
        return cls(sum(part.count for part in parts), tuple(itertools.islice(examples, MAX_EXAMPLES)))


def window_allowance(quota: float | Share, second: int) -> int:
    """Return the starts that the counter allows in a second with pacing "window".

    Quotas are exact in millionths. A fraction of a start carries over to the next second.
    """
    share = quota if isinstance(quota, Share) else share_of(quota)
    return share.allowance(second)


# ------------------------------------------------------------------------------------------------------------ Q: caps


def aligned_caps(
    starts: Sequence[Start],
    quotas: Mapping[str, Quota],
    allowance: Allowance,
    slack_us: int = 0,
    budgets: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Violations:
    """Return the seconds in which a group started more than its quota allows.

    In a second in which the quota changed, the highest quota in force counts. For the cap of a whole topic, name the
    topic: then all starts of its groups count together.

    Args:
        starts: all starts, in order of time.
        quotas: quotas by `<topic>/<group>`, or by `<topic>` for the sum over its groups; other groups are not checked.
        slack_us: microseconds by which the clocks of two hosts may differ. A second in which several hosts started is
            not a violation if corrected clocks would explain it, see `emq.trail.skew`.
        budgets: names in `quotas` under which the starts of a topic count, too, by the topic.
    """

    def lines() -> Iterable[str]:
        for place, found in _starts_of(starts, quotas, budgets).items():

            def allowed_in(second: int, quota: Quota = quotas[place]) -> int:
                in_force = _in_force(quota, second * MICRO, (second + 1) * MICRO)
                return max((allowance(each, second) for each in in_force), default=0)

            counts = Counter(time_us // MICRO for time_us, _ in found)
            for second, count in counts.items():
                allowed = allowed_in(second)
                if count > allowed and not skew.explains_second(found, second, allowed_in, slack_us):
                    yield f"{place} started {count} in second {second}, {allowed} allowed"

    return Violations.of(lines())


def sliding_caps(
    starts: Sequence[Start], quotas: Mapping[str, Quota], bursts: Mapping[str, float], slack_us: int = 0
) -> Violations:
    """Return the stretches of one second, from any time on, in which a smooth group exceeded quota + burst.

    A start may come `USE_S` after it was granted.

    Args:
        starts: all starts, in order of time.
        quotas: see `aligned_caps`.
        bursts: the most tokens that may pile up, by the same names; only groups and topics named here are checked.
        slack_us: see `aligned_caps`.
    """

    def lines() -> Iterable[str]:
        for place, found in _starts_of(starts, bursts).items():
            times = [time_us for time_us, _ in found]
            until = 0
            for i, time_us in enumerate(times):
                if time_us < until:
                    continue
                in_force = _in_force(quotas[place], time_us, time_us + MICRO)
                allowed = math.floor(max(map(float, in_force), default=0.0) * (1 + USE_S) + bursts[place] + 1e-9)
                if i + allowed < len(times) and times[i + allowed] < time_us + MICRO:
                    until = time_us + MICRO
                    count = bisect_left(times, until) - i
                    if skew.explains_stretch(found, time_us, allowed, slack_us):
                        continue
                    yield f"{place} started {count} within the second from {time_us} us, {allowed} allowed"

    return Violations.of(lines())


def _starts_of(
    starts: Sequence[Start],
    wanted: Mapping[str, object],
    budgets: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> dict[str, list[tuple[int, str]]]:
    """Return time and source of each start, by wanted place, topic or budget."""
    found: dict[str, list[tuple[int, str]]] = {name: [] for name in wanted}
    for start in starts:
        for name in (start.place, start.topic, *budgets.get(start.topic, ())):
            if name in found:
                found[name].append((start.time_us, start.source))
    return found


def _in_force(quota: Quota, from_us: int, until_us: int) -> list[float | Share]:
    """Return the quotas that were in force at some time of [from_us, until_us)."""
    if isinstance(quota, int | float | Share):
        return [quota]
    return [
        value
        for (since, value), (till, _) in itertools.pairwise([*quota, (until_us, 0.0)])
        if since < until_us and till > from_us
    ]


# -------------------------------------------------------------------------------------------------------- P: priority


FETCH_S = 5.0
"""Seconds within which an owner reads a message in a queue of its groups, if its buffer has room."""

BEHIND_S = 1.0
"""Seconds for which an owner may start lower priorities while it could read a higher one from the store."""

OwnedUs = Callable[[str, str, int | None], int | None]
"""Function from a place, a source and an epoch to the time when the source took the place; None if not known."""


def inversions(
    starts: Sequence[Start],
    ends: Sequence[End],
    strict: Collection[str] | None,
    owned_us: OwnedUs = lambda _place, _source, _epoch: None,
    waiting: Iterable[Waiting] = (),
) -> Violations:
    """Return the starts made while a message of higher priority was ready in the same group and had to wait.

    Each group is judged at one host and by this host's clock: only one host owns a group at a time, see
    `emq.trail.owners`.

    A message is ready once its owner has it in its buffer. A message without a key also counts as ready in the store,
    from `FETCH_S` after its publish and the takeover of its group, until `BEHIND_S` before its owner buffers it.

    A ready message with a key is excused while an earlier message of the key is unfinished. A message excuses itself
    while it runs: after a crash it may exist twice, in its queue and in its lane. Equal times count in the dispatcher's
    favour.

    Args:
        starts: all starts, in order of time.
        ends: the ends of messages with a key.
        strict: topics that serve strictly by priority; None for all.
        owned_us: tells when an owner took a group; without it, only messages in buffers count as ready.
        waiting: messages that were never started.
    """
    groups: dict[tuple[str, str], list[Start]] = defaultdict(list)
    for start in starts:
        if strict is None or start.topic in strict:
            groups[start.place, start.source].append(start)
    finished: dict[str, int] = {}
    over: dict[tuple[str, int, str], list[int]] = defaultdict(list)
    for end in ends:
        over[end.name, end.attempt, end.source].append(end.time_us)
        if end.final:
            finished[end.name] = max(end.time_us, finished.get(end.name, 0))
    for times in over.values():
        times.sort()
    left: dict[str, list[Waiting]] = defaultdict(list)
    for message in waiting:
        if message.key is None:
            left[message.place].append(message)
    return Violations.of(
        line
        for (place, _), group in groups.items()
        for line in _group_inversions([*group, *_never_started(group, left[place], owned_us)], finished, over, owned_us)
    )


NEVER_US = 1 << 62


def _never_started(group: Sequence[Start], left: Sequence[Waiting], owned_us: OwnedUs) -> Iterator[Start]:
    """Yield the messages that waited in the store while their last owner had the group, as starts at `NEVER_US`.

    These messages count against the owner until `BEHIND_S` before the owner's last start.
    """
    last = group[-1]
    for message in left if owned_us(last.place, last.source, last.epoch) is not None else ():
        ready_us = last.time_us
        yield last._replace(
            time_us=NEVER_US,
            priority=message.priority,
            offset=message.offset,
            name=message.name,
            key=None,
            attempt=1,
            ready_us=ready_us,
            published_us=message.published_us,
        )


_FINISHES, _LEAVES, _STARTS, _READY = range(4)
"""The order of events at one time: a message that starts now does not wait any more, and one that gets ready now has
not waited yet."""


def in_store(start: Start, owned_us: int | None) -> tuple[int, int] | None:
    """Return the time span in which a message was in the store although its owner should have read it.

    Returns None if the owner read the message in time.

    Args:
        start: the start of the message.
        owned_us: time when the owner took the group; None if not known.
    """
    if owned_us is None or start.key is not None or start.attempt != 1 or start.offset < 0 or not start.published_us:
        return None
    since = max(start.published_us, owned_us) + round(FETCH_S * MICRO)
    until = (start.ready_us or start.time_us) - round(BEHIND_S * MICRO)
    return (since, until) if since < until else None


def _group_inversions(
    group: list[Start],
    finished: Mapping[str, int],
    over: Mapping[tuple[str, int, str], Sequence[int]],
    owned_us: OwnedUs,
) -> Iterable[str]:
    if len({start.priority for start in group}) < 2:
        return
    events: list[tuple[int, int, int]] = []
    ends: dict[int, int] = {}
    for i, start in enumerate(group):
        if start.time_us < NEVER_US:
            events += ((start.time_us, _LEAVES, i), (start.time_us, _STARTS, i))
            if start.ready_us:
                events.append((start.ready_us, _READY, i))
        if stored := in_store(start, owned_us(start.place, start.source, start.epoch)):
            events += ((stored[0], _READY, i), (stored[1], _LEAVES, i))
        if start.key is not None and start.name in finished:
            events.append((finished[start.name], _FINISHES, i))
        if start.key is not None:
            times = over.get((start.name, start.attempt, start.source), ())
            ends[i] = next(iter(times[bisect_left(times, start.time_us) :]), NEVER_US)
    waiting: dict[int, _Waiting] = {p: _Waiting() for p in sorted({start.priority for start in group})}
    unfinished: dict[tuple[str, str | None], dict[str, int]] = defaultdict(dict)
    for time_us, what, i in sorted(events):
        start = group[i]
        if what == _READY:
            if start.time_us > time_us:
                waiting[start.priority].add(start)
        elif what == _LEAVES:
            waiting[start.priority].discard(start)
        elif what == _FINISHES:
            unfinished[start.topic, start.key].pop(start.name, None)
        else:
            for priority, ready in waiting.items():
                if priority < start.priority and (kept := ready.not_excused(start.topic, unfinished, time_us)):
                    yield (
                        f"{start.name} (priority {start.priority}) started at {time_us} us in {start.place} while "
                        f"{kept} (priority {priority}) was ready"
                    )
                    break
            if start.key is not None and finished.get(start.name, time_us + 1) > time_us:
                holders = unfinished[start.topic, start.key]
                holders[start.name] = max(ends[i], holders.get(start.name, 0))


class _Waiting:
    """The ready messages of one priority, by key: a backlog behind one key costs one look."""

    def __init__(self) -> None:
        self._by_key: dict[str | None, set[str]] = {}

    def add(self, start: Start) -> None:
        self._by_key.setdefault(start.key, set()).add(start.name)

    def discard(self, start: Start) -> None:
        if names := self._by_key.get(start.key):
            names.discard(start.name)
            if not names:
                del self._by_key[start.key]

    def not_excused(
        self, topic: str, unfinished: Mapping[tuple[str, str | None], Mapping[str, int]], now_us: int
    ) -> str | None:
        """Return a message that nothing held back, or None.

        Args:
            unfinished: by topic and key, the messages that have begun, and the time until which each runs.
        """
        for key, names in self._by_key.items():
            holders = unfinished.get((topic, key), {})
            if not holders:
                return next(iter(names))
            if len(holders) == 1:
                # A message between two attempts is unfinished and may be ready; then it does not hold itself back.
                ((holder, runs_until_us),) = holders.items()
                if holder in names and runs_until_us <= now_us:
                    return holder
        return None
