"""The report at the end of a load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from emq_spark.load import ledger
from emq_spark.load.ledger import Run
from emq_spark.load.task import Done

TENANTS = 10
"""Most tenants that the report names: those with the most failed messages, then the busiest."""

ERRORS = 10


class Tenant(msgspec.Struct, frozen=True):
    """One topic: messages by outcome."""

    topic: str
    published: int
    merged: int
    unknown: int
    refused: int


class Report(msgspec.Struct, frozen=True):
    """Planned and achieved publishes, and failures.

    Attributes:
        run, seed, partitions: id, seed and number of partitions of the run.
        ledger: directory of its ledger.
        asked: messages of the plan.
        published: messages that are in the store.
        merged: further messages that the store merged with others.
        unknown: messages that may be in the store.
        refused: messages that the load tried to publish and that are not in the store.
        earlier: messages among all these that earlier attempts had dealt with.
        left: messages that the load did not try, because somebody stopped it.
        seconds: seconds from the first publish to the last, over all partitions.
        asked_per_s, achieved_per_s: messages a second, on average over the load.
        late_s: seconds by which the latest messages were late. With more than some tenths of a second, the load was too
            high for the store or this machine.
        stopped: True if somebody ended the load before its time.
        errors: number of messages by error text.
        tenants: the most notable ones of `topics`.
    """

    run: str
    seed: int
    partitions: int
    ledger: str
    asked: int
    published: int
    merged: int
    unknown: int
    refused: int
    earlier: int
    left: int
    seconds: float
    asked_per_s: float
    achieved_per_s: float
    late_s: float
    stopped: bool
    errors: dict[str, int]
    topics: int
    tenants: tuple[Tenant, ...]

    @property
    def ok(self) -> bool:
        """True if no message was refused and none has an unknown outcome."""
        return not (self.refused or self.unknown)


def of(run: Run, place: str, done: Iterable[Done], planned_s: float | None) -> Report:
    """Return the report of a run.

    Args:
        place: directory of its ledger.
        planned_s: planned seconds of the load; None if it goes as fast as possible.
    """
    parts = list(done)
    counts: dict[str, Counter[str]] = {}
    texts: Counter[str] = Counter()
    for part in parts:
        texts.update(part.errors)
        for topic, counted in part.counts.items():
            counts.setdefault(topic, Counter()).update(counted)
    total: Counter[str] = sum(counts.values(), Counter())
    seconds = (max(p.last_us for p in parts) - min(p.first_us for p in parts)) / 1e6 if parts else 0.0
    asked = sum(part.rows for part in parts)
    earlier = sum(part.earlier for part in parts)
    arrived = total.total() - total[ledger.UNKNOWN] - total[ledger.REFUSED]
    return Report(
        run=run.run,
        seed=run.seed,
        partitions=len(parts),
        ledger=place,
        asked=asked,
        published=total[ledger.PUBLISHED],
        merged=total[ledger.MERGED],
        unknown=total[ledger.UNKNOWN],
        refused=total[ledger.REFUSED],
        earlier=earlier,
        left=asked - total.total(),
        seconds=round(seconds, 3),
        asked_per_s=round(asked / planned_s, 3) if planned_s else 0.0,
        achieved_per_s=round(max(0, arrived - earlier) / seconds, 3) if seconds else 0.0,
        late_s=round(max((part.late_s for part in parts), default=0.0), 3),
        stopped=any(part.stopped for part in parts),
        errors=dict(texts.most_common(ERRORS)),
        topics=len(counts),
        tenants=_notable(counts),
    )


def _notable(counts: dict[str, Counter[str]]) -> tuple[Tenant, ...]:
    def rank(topic: str) -> tuple[int, int, str]:
        counter = counts[topic]
        return -(counter[ledger.UNKNOWN] + counter[ledger.REFUSED]), -counter.total(), topic

    chosen = sorted(counts, key=rank)[:TENANTS]
    return tuple(Tenant(topic, **{outcome: counts[topic][outcome] for outcome in ledger.OUTCOMES}) for topic in chosen)
