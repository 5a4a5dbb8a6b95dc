"""The checkers behind the proof: each takes plain records of starts and ends, and lists the violations of a promise.

This module reads no files and does not need pyarrow, so that a simulation can check its own records in the same way.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from emq.topics.shares import MICRO, Share, share_of
from emq.topics.tokens import USE_S
from emq_proof import skew

MAX_EXAMPLES = 10

Quota = float | Share | Sequence[tuple[int, float | Share]]
"""Starts a second: a number, a group's share of a topic's quota, or a list of (from_us, number or share) in order of
time. Before the first time of a list, no start is allowed."""


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


# ------------------------------------------------------------------------------------------------------------ Q: caps


def aligned_caps(
    starts: Sequence[Start],
    quotas: Mapping[str, Quota],
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
            not a violation if corrected clocks would explain it, see `emq_proof.skew`.
        budgets: names in `quotas` under which the starts of a topic count, too, by the topic.
    """

    def lines() -> Iterable[str]:
        for place, found in _starts_of(starts, quotas, budgets).items():

            def allowed_in(second: int, quota: Quota = quotas[place]) -> int:
                in_force = _in_force(quota, second * MICRO, (second + 1) * MICRO)
                shares = (each if isinstance(each, Share) else share_of(each) for each in in_force)
                return max((share.allowance(second) for share in shares), default=0)

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
