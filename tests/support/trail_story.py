"""Small trails, told delivery by delivery: what was published, who owned it, and how each attempt began and ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path

from emq.storage.message import Message
from emq.trail import events
from emq.trail.options import TrailOptions
from emq.trail.writer import Trail
from emq_proof.proof import Expectations, Proof, prove
from support.manual_clock import ManualClock

T0_S = 1_000_000_000
T0_US = T0_S * 1_000_000
MS = 1000
CONTENT = f"0-{'a' * 24}"
"""An id like those of sorted topics."""


@dataclasses.dataclass
class Delivery:
    """One attempt at a message; times in milliseconds after T0. `end` None: it never ended."""

    id: str
    start: float
    end: float | None
    ready: float = 0
    key: str | None = None
    priority: int = 0
    offset: int = 0
    attempt: int = 1
    outcome: str = "settled"
    source: str = "host"

    def message(self) -> Message:
        return Message(
            self.id,
            b"",
            self.key,
            published_us=T0_US,
            priority=self.priority,
            attempt=self.attempt,
            topic="shop",
            offset=self.offset,
            ready_us=T0_US + round(self.ready * MS),
            started_us=T0_US + round(self.start * MS),
        )


def clean(n: int = 20) -> list[Delivery]:
    """Return twenty deliveries within a second, one after the other, of four keys, at two priorities in turn."""
    return [
        Delivery(f"m{i}", 10 * i + 2, 10 * i + 5, 10 * i + 1, f"k{i % 4}", priority=i % 2, offset=i // 2)
        for i in range(n)
    ]


class Story:
    """Writes a ledger: one producer, which publishes the messages of the deliveries, and hosts, which deliver them.

    What hosts do is recorded in the order of its times. Each takes the group just before its first start.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.trails: dict[str, Trail] = {}
        self.epochs: dict[str, int] = {}

    def trail(self, source: str = "host") -> Trail:
        if source not in self.trails:
            options = TrailOptions(rotate_s=60.0, early_s=60.0)
            self.trails[source] = Trail.open(self.directory, source, ManualClock(), options)
        return self.trails[source]

    def publish(self, *deliveries: Delivery) -> Story:
        for d in {d.id: d for d in deliveries if d.attempt == 1}.values():
            published = events.Published(T0_US, "shop", 0, [d.id], d.priority, T0_US, [d.offset], [d.key])
            self.trail("producer").record(published)
        return self

    def own(self, source: str, at_ms: float | None) -> Story:
        """Let the source take the group; with `None`, without recording it."""
        self.epochs[source] = len(self.epochs) + 1
        if at_ms is not None:
            self.trail(source).record(events.Owned(T0_US + round(at_ms * MS), "shop", 0, self.epochs[source]))
        return self

    def deliver(self, *deliveries: Delivery) -> Story:
        steps: list[tuple[int, Callable[[], None]]] = []
        for d in sorted(deliveries, key=lambda d: d.start):
            trail, m = self.trail(d.source), d.message()
            if d.source not in self.epochs:
                self.own(d.source, d.start)
            steps.append((m.started_us, partial(trail.started, m, self.epochs[d.source])))
            if d.end is not None:
                steps.append((T0_US + round(d.end * MS), partial(_end, trail, m, d)))
        for _, record in sorted(steps, key=lambda step: step[0]):
            record()
        return self

    def close(self) -> None:
        for trail in self.trails.values():
            assert trail.close()

    def prove(self, expected: Expectations | None = None) -> Proof:
        self.close()
        return prove(self.directory, expected or Expectations(still_queued=0))


def _end(trail: Trail, m: Message, d: Delivery) -> None:
    assert d.end is not None
    now_us = T0_US + round(d.end * MS)
    if d.outcome == "settled":
        trail.settled(m, now_us)
    elif d.outcome == "retried":
        trail.record(events.Retried(now_us, m, "failed", now_us // 1000))
    else:
        trail.record(events.Dead(now_us, m, "failed for good"))


def tell(story: Story, deliveries: list[Delivery], expected: Expectations | None = None) -> Proof:
    return story.publish(*deliveries).deliver(*deliveries).prove(expected)


def broken(proof: Proof) -> str:
    return "".join(letter for letter, held in proof.promises.items() if not held)


def cut_short(story: Story, source: str = "host") -> None:
    """Kill the source: its last events are not in a closed segment."""
    story.close()
    newest = max(story.directory.glob(f"{source}-*.parquet"))
    newest.unlink()


def in_segments(story: Story) -> Path:
    """Return a clean ledger whose host wrote four segments, numbers 0 to 3."""
    deliveries = clean()
    story.publish(*deliveries)
    for part in (deliveries[:10], deliveries[10:]):
        story.deliver(*part)
        story.trail().flush()
    story.close()
    assert prove(story.directory).ok
    return story.directory


def host_segment(directory: Path, number: int) -> Path:
    return directory / f"host-{T0_US}-{number:06d}.parquet"


def reasons(directory: Path) -> tuple[str, ...]:
    proof = prove(directory)
    assert not proof.ok
    return proof.void_reasons
