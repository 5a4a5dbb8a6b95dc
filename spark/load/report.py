"""What a load has to report at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from emq.cli import output
from spark.load import ledger
from spark.load.ledger import Run
from spark.load.task import Done

if TYPE_CHECKING:
    from rich.console import RenderableType

TENANTS = 10
"""Tenants that are named: those with the most that went wrong, then the busiest."""

ERRORS = 10


class Tenant(msgspec.Struct, frozen=True):
    """One topic: messages by outcome."""

    topic: str
    published: int
    merged: int
    unknown: int
    refused: int


class Report(msgspec.Struct, frozen=True):
    """What was asked, what was achieved, and what went wrong.

    Attributes:
        run, seed, partitions: of the run.
        ledger: where its ledger lies.
        asked: messages of the plan.
        published: those that are in the store; `merged` with others on top of that.
        unknown: those that may be in the store.
        refused: those that are not, though they were tried.
        earlier: of all these, those that earlier attempts had dealt with.
        left: those that were not tried, since the load was stopped.
        seconds: from the first publish to the last, over all partitions.
        asked_per_s, achieved_per_s: messages a second, on average over the load.
        late_s: by how much the latest messages came too late; above some tenths of a second, the load is more than
            the store or this machine takes.
        stopped: the load was ended before its time.
        errors: texts, and how many messages they concern.
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
        """Nothing was refused, and nothing is left open."""
        return not (self.refused or self.unknown)


def of(run: Run, place: str, done: Iterable[Done], planned_s: float | None) -> Report:
    """The report of a run.

    Args:
        place: of its ledger.
        planned_s: how long the load was to last; None where it goes as fast as it can.
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


def render(report: Report) -> RenderableType:
    """The report for a terminal."""
    from rich.console import Group

    lines = [_first_line(report), _pace(report)]
    if report.earlier:
        lines.append(f"{output.count(report.earlier, 'message')} of these had been dealt with by earlier attempts")
    if report.left:
        lines.append(f"{output.count(report.left, 'message')} not tried: the load was stopped")
    lines += [f"{count:,} x {output.plain(text)}" for text, count in report.errors.items()]
    rows = [(t.topic, t.published, t.merged, t.unknown, t.refused) for t in report.tenants]
    names = ("topic", "published", "merged", "unknown", "refused")
    title = f"{len(rows)} of {output.count(report.topics, 'topic')}" if report.topics > len(rows) else ""
    table = output.table(title, names, rows, right=names[1:])
    return Group(*lines, table, f"ledger of run {report.run}: {report.ledger}")


def _first_line(report: Report) -> str:
    said = [f"asked {report.asked:,} messages", f"published {report.published:,}"]
    numbers = (("merged", report.merged), ("unknown", report.unknown), ("refused", report.refused))
    said += [f"{name} {number:,}" for name, number in numbers if number]
    return ", ".join(said)


def _pace(report: Report) -> str:
    took = f"{output.number(report.achieved_per_s)} a second in {output.duration(report.seconds)}"
    if not report.asked_per_s:
        return f"achieved {took}, as fast as it went"
    late = f", at worst {output.duration(report.late_s)} late" if report.late_s >= 0.1 else ""
    return f"asked {output.number(report.asked_per_s)} a second, achieved {took}{late}"
