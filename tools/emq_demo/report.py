"""The end of the demonstration: the verdict, as a picture for people and as one JSON object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from emq.runtime import plurals
from emq_demo import measures, notices, view
from emq_demo.measures import TrailFigures
from emq_demo.page import Page
from emq_demo.scenario import Scenario, Tenant
from emq_demo.verdict import Evidence, Verdict
from emq_notices.notice import Notice
from emq_proof.proof import Wait


class Report(NamedTuple):
    """The contents of the demonstration's report.

    Attributes:
        seconds: duration of the whole run, in seconds.
        kept: the directory with store and trail, if they stay; else None.
        page: the dashboard that the run had; None if it had none.
        told: the notices that operators got.
    """

    scenario: Scenario
    store: str
    evidence: Evidence
    figures: TrailFigures
    verdict: Verdict
    seconds: float
    kept: str | None
    page: Page | None = None
    told: Sequence[Notice] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return one object of plain values for JSON; waits in milliseconds."""
        s = self.scenario
        return {
            **self.verdict.to_dict(),
            "retried": self.figures.retried,
            "store": self.store,
            "seconds": round(self.seconds, 1),
            "flights": s.describe(),
            "flood_per_s": s.flood_per_s,
            "trail_events": self.evidence.proof.events,
            "receipts": len(self.evidence.receipts),
            "tenants": [line.to_dict() for line in _lines(self)],
            "notices": msgspec.to_builtins(self.told),
            "kept": self.kept,
        }

    def render(self) -> RenderableType:
        """Return the picture for a terminal of 100 columns and 30 lines."""
        parts: list[RenderableType] = [
            Text(self.scenario.describe(), style="dim"),
            _tenants(_lines(self)),
            Text(),
            _promises(self),
        ]
        if self.told:
            parts.append(Text(f"operators got {plurals.count(len(self.told), 'notice')}: {notices.telling(self.told)}"))
        parts += [Text(f"✗ {line}", style="red") for line in self.verdict.broken]
        took = f"in {self.seconds:.0f} s on {self.store}"
        if self.verdict.isolated is None and self.verdict.ok:
            parts.append(Text(f"✓ every promise held but isolation, which was not judged, {took}", style="bold yellow"))
        elif self.verdict.ok:
            parts.append(Text(f"✓ every promise held, {took}", style="bold green"))
        else:
            parts.append(Text(f"✗ not every promise held, {took}", style="bold red"))
        if self.kept:
            parts.append(Text(f"store and trail are kept in {self.kept}", style="dim"))
        return Group(*parts)


class _Line(NamedTuple):
    """One tenant's figures."""

    tenant: Tenant
    peak_starts: int
    peak_arrivals: int
    published: int
    delivered: int
    still_queued: int
    dead: int
    calm: Wait
    troubled: Wait

    def to_dict(self) -> dict[str, Any]:
        tenant = self.tenant
        return {
            "carrier": tenant.carrier,
            "airline": tenant.airline,
            "trouble": tenant.trouble,
            "limit": tenant.limit,
            "peak_starts": self.peak_starts,
            "peak_arrivals": self.peak_arrivals,
            "published": self.published,
            "delivered": self.delivered,
            "still_queued": self.still_queued,
            "dead": self.dead,
            "wait_p99_calm_ms": self.calm.p99_us / 1e3,
            "wait_p99_ms": self.troubled.p99_us / 1e3,
        }


def _lines(report: Report) -> list[_Line]:
    evidence, (calm, troubled) = report.evidence, report.figures.waits
    carrier_of = evidence.published
    successes = {r.id for r in evidence.receipts if 200 <= r.status < 300}
    left = evidence.leftovers
    published = Counter(carrier_of.values())
    delivered, queued, dead = (
        Counter(carrier_of[id_] for id_ in ids if id_ in carrier_of)
        for ids in (successes, left.queued | left.delayed, left.dead)
    )
    arrivals = measures.arrival_peaks(evidence.receipts)
    return [
        _Line(
            tenant,
            report.figures.peaks.get(tenant.carrier, 0),
            arrivals.get(tenant.carrier, 0),
            published[tenant.carrier],
            delivered[tenant.carrier],
            queued[tenant.carrier],
            dead[tenant.carrier],
            calm.of(tenant.carrier),
            troubled.of(tenant.carrier),
        )
        for tenant in report.scenario.tenants
    ]


def _tenants(lines: list[_Line]) -> Table:
    table = view.plain_table()
    table.add_column("\nairline", no_wrap=True, ratio=1)
    table.add_column("then\nendpoint", no_wrap=True)
    for name in (
        *("\nlimit", "most/s\nstarted", "most/s\ncounted", "\npublished", "\ndelivered", "still\nqueued", "\ndead"),
        *("calm\np99 ms", "trouble\np99 ms"),
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for line in lines:
        tenant = line.tenant
        table.add_row(
            view.airline(tenant, tenant.trouble),
            view.endpoint(tenant.trouble),
            Text(f"{tenant.limit:,}", style="dim"),
            f"{line.peak_starts:,}",
            Text(f"{line.peak_arrivals:,}", style="dim"),
            f"{line.published:,}",
            f"{line.delivered:,}",
            view.count(line.still_queued, "yellow"),
            view.count(line.dead, "red"),
            _ms(line.calm),
            _ms(line.troubled),
        )
    return table


def _ms(wait: Wait) -> str:
    return f"{wait.p99_us / 1e3:,.1f}" if wait.count else ""


def _promises(report: Report) -> Table:
    v = report.verdict
    table = Table.grid(padding=(0, 1))
    queued, dead = f"{v.still_queued:,} still queued", plurals.count(v.dead, "dead letter")
    retried = report.figures.retried
    busy = (
        f"\nnot judged: other programs took {report.evidence.others:.0%} of the processors"
        if v.isolated is None
        else ""
    )
    rows = (
        (
            not v.lost,
            f"lost {v.lost}",
            f"{v.published:,} published = {v.delivered:,} delivered + {queued} + {dead}",
        ),
        (
            not v.duplicates,
            f"duplicates {v.duplicates}",
            f"no id was answered 2xx twice; {plurals.count(retried, 'failed delivery', 'failed deliveries')} "
            f"{plurals.were(retried)} retried",
        ),
        (
            not v.cap_violations,
            f"cap violations {v.cap_violations}",
            "no tenant got more than its limit in any second, retries included",
        ),
        (
            not v.priority_inversions,
            f"inversions {v.priority_inversions}",
            "no message started while one of a higher priority was ready in its group",
        ),
        (
            v.isolated,
            f"isolation {v.ratio:.2f}x",
            f"p50/p99 wait of the {len(report.scenario.victims)} healthy: {_pair(report.evidence.calm)} ms calm, "
            f"{_pair(report.evidence.troubled)} ms in trouble{busy}",
        ),
        (
            not v.disagreements and not report.evidence.proof.void_reasons,
            "ledgers agree",
            f"by id: trail ({plurals.count(report.evidence.proof.events, 'event')}), receivers' logs "
            f"({plurals.count(len(report.evidence.receipts), 'call')}), store",
        ),
    )
    for held, name, text in rows:
        mark = Text("?", style="bold yellow") if held is None else _mark(held)
        table.add_row(mark, Text(name, style="bold"), Text(text))
    return table


def _mark(held: bool) -> Text:
    return Text("✓", style="bold green") if held else Text("✗", style="bold red")


def _pair(wait: Wait) -> str:
    return f"{wait.p50_us / 1e3:.1f}/{wait.p99_us / 1e3:.1f}"
