"""Figures from the trail and from the receivers' logs; the report shows them beside the proof."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from emq.trail import events as kinds
from emq.trail import segments
from emq_demo.receivers import Receipt
from emq_demo.scenario import of_receiver
from emq_proof.proof import Wait

_SECOND_US = 1_000_000


class Span(NamedTuple):
    """A stretch of time [from_us, until_us), microseconds since the epoch."""

    from_us: int
    until_us: int


class Waits:
    """The waits of the messages that were published in one span, by topic."""

    def __init__(self, waits_us: dict[str, list[int]]) -> None:
        self._waits_us = waits_us

    def of(self, topic: str) -> Wait:
        return Wait.of(self._waits_us.get(topic, ()))

    def pooled(self, topics: Collection[str]) -> Wait:
        return Wait.of(wait for topic in topics for wait in self._waits_us.get(topic, ()))


class TrailFigures(NamedTuple):
    """Attributes:
    retried: number of failed attempts with a retry to follow.
    peaks: topic to the most starts in one second of the clock.
    waits: the waits of each span, in the order of the spans.
    """

    retried: int
    peaks: dict[str, int]
    waits: tuple[Waits, ...]


def of_trail(directory: Path, spans: Sequence[Span]) -> TrailFigures:
    """Return the figures of a closed trail. A message belongs to the span in which it was published."""
    table = segments.read(directory).table
    events: list[str] = table["event"].to_pylist()
    columns = [table[name].to_pylist() for name in ("topic", "time_us", "attempt", "published_us")]
    starts: dict[str, Counter[int]] = defaultdict(Counter)
    waits: tuple[dict[str, list[int]], ...] = tuple(defaultdict(list) for _ in spans)
    for event, topic, time_us, attempt, published_us in zip(events, *columns, strict=True):
        if event != kinds.STARTED:
            continue
        starts[topic][time_us // _SECOND_US] += 1
        if attempt == 1:
            for span, found in zip(spans, waits, strict=True):
                if span.from_us <= published_us < span.until_us:
                    found[topic].append(time_us - published_us)
    peaks = {topic: max(seconds.values()) for topic, seconds in starts.items()}
    return TrailFigures(events.count(kinds.RETRIED), peaks, tuple(map(Waits, waits)))


def arrival_peaks(receipts: Iterable[Receipt]) -> dict[str, int]:
    """Return carrier to the most calls that its receivers counted in one second of their clock."""
    arrivals: dict[str, Counter[int]] = defaultdict(Counter)
    for receipt in receipts:
        arrivals[of_receiver(receipt.tenant)][receipt.arrived_us // _SECOND_US] += 1
    return {carrier: max(seconds.values()) for carrier, seconds in arrivals.items()}
