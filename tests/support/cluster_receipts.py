"""The receipts that the handlers of a cluster's host processes wrote, and the promises about them."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

SECOND_US = 1_000_000

LATE_S = 2.0
"""Seconds by which a checkpoint may be later than its interval when the machine is busy."""


class Receipt(NamedTuple):
    """One line of a handler.

    Attributes:
        what: "start" or "end" of a handler.
        started_us: start of the delivery by the host's clock, in microseconds since the epoch.
        epoch: the epoch under which the host owned the group then; 0 if it did not own the group.
        noted_us: time of the line by the machine's clock, in microseconds since the epoch.
    """

    what: str
    id: str
    attempt: int
    topic: str
    group_index: int
    priority: int
    offset: int
    started_us: int
    epoch: int
    noted_us: int
    host: str

    @property
    def group(self) -> str:
        return f"{self.topic}/{self.group_index}"


class Crash(NamedTuple):
    """A host was ended, stopped or cut off, so it could not save its progress."""

    host: str
    at_us: int


class Receipts:
    """The lines of one host process; the file is read repeatedly, each line once."""

    def __init__(self, path: Path, host: str) -> None:
        self.path = path
        self._host = host
        self._read = 0
        self._found: list[Receipt] = []
        path.touch()

    def all(self) -> list[Receipt]:
        with self.path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        self._found += [Receipt(*json.loads(line), self._host) for line in whole.splitlines()]
        return self._found


def starts(receipts: Iterable[Receipt]) -> list[Receipt]:
    """Return the starts of all hosts by their time."""
    return sorted((r for r in receipts if r.what == "start"), key=lambda r: r.started_us)


def done(receipts: Iterable[Receipt]) -> set[str]:
    return {r.id for r in receipts if r.what == "end"}


def repeated(receipts: Iterable[Receipt]) -> list[tuple[Receipt, Receipt]]:
    """Return the repeated deliveries, each as (earlier delivery, repetition)."""
    first: dict[tuple[str, int], Receipt] = {}
    found = []
    for r in starts(receipts):
        before = first.setdefault((r.id, r.attempt), r)
        if before is not r:
            found.append((before, r))
            first[r.id, r.attempt] = r
    return found


def unexcused(receipts: Iterable[Receipt], crashes: Sequence[Crash], checkpoint_s: float) -> list[str]:
    """Return repetitions of messages that were neither in flight nor waiting for their checkpoint at a crash."""
    window_us = (checkpoint_s + LATE_S) * SECOND_US
    excused: set[str] = set()
    found = []
    for before, again in repeated(receipts):
        crashed = any(c.host == before.host and before.noted_us > c.at_us - window_us for c in crashes)
        # What failed again may be retried again, too.
        if crashed or (again.attempt > 1 and again.id in excused):
            excused.add(again.id)
        else:
            found.append(f"{again.id} attempt {again.attempt} of {again.group}: {_brief(before)}, then {_brief(again)}")
    return found


def over_cap(receipts: Iterable[Receipt], quota: Callable[[Receipt], float]) -> list[str]:
    """Return the topics that started more than their quota in an aligned second, by the clocks of their hosts."""
    seconds: dict[tuple[str, int], list[Receipt]] = defaultdict(list)
    for r in starts(receipts):
        seconds[r.topic, r.started_us // SECOND_US].append(r)
    return [
        f"{topic} started {len(found)} in second {second}: {dict(Counter((r.host, r.group) for r in found))}"
        for (topic, second), found in seconds.items()
        if len(found) > max(map(quota, found))
    ]


def two_owners(receipts: Iterable[Receipt]) -> list[str]:
    """Return starts by a host after the first start of a later owner, starts without owning, epochs of two hosts.

    All hosts stamp their starts by the time of their environment, whatever the clocks of their machines say.
    """
    latest: dict[str, Receipt] = {}
    owner: dict[tuple[str, int], str] = {}
    found = []
    for r in sorted(starts(receipts), key=lambda r: r.started_us):
        if r.epoch == 0:
            found.append(f"{r.group}: {_brief(r)} without owning it")
        before = latest.get(r.group)
        if before is not None and r.epoch < before.epoch:
            found.append(f"{r.group}: {_brief(r)} after {_brief(before)}")
        else:
            latest[r.group] = r
        if owner.setdefault((r.group, r.epoch), r.host) != r.host:
            found.append(f"{r.group}: epoch {r.epoch} is both {owner[r.group, r.epoch]}'s and {r.host}'s")
    return found


def moves(receipts: Iterable[Receipt], from_us: int, to_us: int) -> Iterator[tuple[str, int]]:
    """Yield (group, number of moves) of each group that plans of that time moved.

    An epoch is the time of its plan, in microseconds. The first start under the epoch may come long after that.
    """
    last: dict[str, Receipt] = {}
    found: Counter[str] = Counter()
    for r in starts(receipts):
        before = last.get(r.group, r)
        found[r.group] += r.host != before.host and from_us <= r.epoch < to_us
        last[r.group] = r
    yield from (+found).items()


def longest_pause_s(receipts: Iterable[Receipt]) -> float:
    """Return the longest time in seconds between a start of a group and its next one, by the hosts' clocks."""
    last: dict[str, int] = {}
    longest_us = 0
    for r in starts(receipts):
        longest_us = max(longest_us, r.started_us - last.get(r.group, r.started_us))
        last[r.group] = r.started_us
    return longest_us / SECOND_US


def _brief(r: Receipt) -> str:
    return f"{r.host} under epoch {r.epoch} at {r.started_us / SECOND_US:.3f}"
