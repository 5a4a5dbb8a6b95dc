"""Priority (P): no start while a message of higher priority is ready in the same group and nothing holds it back.

This module reads no files and does not need pyarrow, so that a simulation can check its own records in the same way.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from emq.topics.shares import MICRO
from emq_proof.checks import End, Start, Violations
from emq_proof.waiting import Waiting

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
    `emq_proof.owners`.

    A message is ready once its owner has it in its buffer. A message without a key also counts as ready in the store,
    from `FETCH_S` after its publish and the takeover of its group, until `BEHIND_S` before its owner buffers it for the
    first time.

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


FINISHES, LEAVES, STARTS, READY, STORED = range(5)
"""The order of steps at one time: a message that starts now does not wait any more, and one that gets ready now has not
waited yet."""


class Step(NamedTuple):
    """A change in a group at one host.

    Attributes:
        what: `READY` and `LEAVES`: the message comes into the buffer, and out of it; `STARTS`; `STORED`: the message
            lies in the store and should have been read, see `in_store`; `FINISHES`: the message holds its key no more.
        until_us: of `STARTS`, the end of the delivery; of `STORED`, the end of this stretch.
        finished_us: the last final end of the message; None if there is none.
    """

    time_us: int
    what: int
    name: str
    key: str | None
    priority: int
    until_us: int
    finished_us: int | None


class Sweep:
    """Goes over the steps of one group at one host in order, and finds the starts that overtook a ready message.

    It holds the messages in the host's buffers and those that hold a key. Of the messages in the store it holds one of
    each priority, however many there are: the one that stays longest is there as long as any other.
    """

    def __init__(self) -> None:
        self._stored: dict[int, tuple[int, str]] = {}
        self._ready: dict[int, _Ready] = defaultdict(_Ready)
        self._unfinished: dict[str, dict[str, int]] = defaultdict(dict)

    def overtaken(self, step: Step) -> tuple[str, int] | None:
        """Take the next step; return name and priority of a message that the step overtook, or None.

        Args:
            step: in order of `time_us`, then of `what`.
        """
        if step.what == STORED:
            self._stored[step.priority] = max((step.until_us, step.name), self._stored.get(step.priority, (0, "")))
        elif step.what == READY:
            self._ready[step.priority].add(step)
        elif step.what == LEAVES:
            self._ready[step.priority].discard(step)
        elif step.what == FINISHES and step.key in self._unfinished:
            self._unfinished[step.key].pop(step.name, None)
            if not self._unfinished[step.key]:
                del self._unfinished[step.key]
        elif step.what == STARTS:
            found = next(filter(None, (self._kept(above, step.time_us) for above in range(step.priority))), None)
            if step.key is not None and (step.finished_us is None or step.finished_us > step.time_us):
                holders = self._unfinished[step.key]
                holders[step.name] = max(step.until_us, holders.get(step.name, 0))
            return found
        return None

    def _kept(self, priority: int, now_us: int) -> tuple[str, int] | None:
        until_us, name = self._stored.get(priority, (0, ""))
        if until_us > now_us:
            return name, priority
        kept = self._ready[priority].not_excused(self._unfinished, now_us)
        return None if kept is None else (kept, priority)


def _group_inversions(
    group: list[Start],
    finished: Mapping[str, int],
    over: Mapping[tuple[str, int, str], Sequence[int]],
    owned_us: OwnedUs,
) -> Iterable[str]:
    if len({start.priority for start in group}) < 2:
        return
    steps = sorted(_steps(group, finished, over, owned_us), key=lambda step: (step.time_us, step.what))
    sweep = Sweep()
    for step in steps:
        if found := sweep.overtaken(step):
            yield (
                f"{step.name} (priority {step.priority}) started at {step.time_us} us in {group[0].place} while "
                f"{found[0]} (priority {found[1]}) was ready"
            )


def _steps(
    group: list[Start],
    finished: Mapping[str, int],
    over: Mapping[tuple[str, int, str], Sequence[int]],
    owned_us: OwnedUs,
) -> Iterator[Step]:
    seen: set[tuple[str, int | None]] = set()
    for start in group:
        message = start.name, start.key, start.priority
        until_us, finished_us = NEVER_US, None
        if start.key is not None:
            times = over.get((start.name, start.attempt, start.source), ())
            until_us = next(iter(times[bisect_left(times, start.time_us) :]), NEVER_US)
            finished_us = finished.get(start.name)
        if start.time_us < NEVER_US:
            for what in (LEAVES, STARTS):
                yield Step(start.time_us, what, *message, until_us, finished_us)
            if start.ready_us and start.ready_us < start.time_us:
                yield Step(start.ready_us, READY, *message, until_us, finished_us)
        stored = in_store(start, owned_us(start.place, start.source, start.epoch))
        if stored and (start.name, start.epoch) not in seen:
            yield Step(stored[0], STORED, *message, stored[1], finished_us)
        seen.add((start.name, start.epoch))
        if finished_us is not None:
            yield Step(finished_us, FINISHES, *message, until_us, finished_us)


class _Ready:
    """The ready messages of one priority, by key: a backlog behind one key costs one look."""

    def __init__(self) -> None:
        self._by_key: dict[str | None, set[str]] = {}

    def add(self, step: Step) -> None:
        self._by_key.setdefault(step.key, set()).add(step.name)

    def discard(self, step: Step) -> None:
        if names := self._by_key.get(step.key):
            names.discard(step.name)
            if not names:
                del self._by_key[step.key]

    def not_excused(self, unfinished: Mapping[str, Mapping[str, int]], now_us: int) -> str | None:
        """Return a message that nothing held back, or None.

        Args:
            unfinished: by key, the messages that have begun, and the time until which each runs.
        """
        for key, names in self._by_key.items():
            holders = unfinished.get(key, {}) if key is not None else {}
            if not holders:
                return next(iter(names))
            if len(holders) == 1:
                # A message between two attempts is unfinished and may be ready; then it does not hold itself back.
                ((holder, runs_until_us),) = holders.items()
                if holder in names and runs_until_us <= now_us:
                    return holder
        return None
