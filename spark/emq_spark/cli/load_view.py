"""The report of a load on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emq.runtime import durations, plurals
from emq_cli import output

if TYPE_CHECKING:
    from rich.console import RenderableType

    from emq_spark.load.report import Report


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
    said = [f"asked {plurals.count(report.asked, 'message')}", f"published {report.published:,}"]
    numbers = (("merged", report.merged), ("unknown", report.unknown), ("refused", report.refused))
    said += [f"{name} {number:,}" for name, number in numbers if number]
    return ", ".join(said)


def _pace(report: Report) -> str:
    took = f"{output.number(report.achieved_per_s)} a second in {durations.brief(report.seconds)}"
    if not report.asked_per_s:
        return f"achieved {took}, as fast as it went"
    late = f", at worst {durations.brief(report.late_s)} late" if report.late_s >= 0.1 else ""
    return f"asked {output.number(report.asked_per_s)} a second, achieved {took}{late}"
