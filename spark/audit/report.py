"""The result of an audit as one HTML file with charts and tables."""

from __future__ import annotations

import html
import time
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path

from emq import errors
from emq.durations import brief
from spark.audit import svg
from spark.audit.charts import Charts, Series
from spark.audit.findings import NAMES, Kind
from spark.audit.result import Audit
from spark.audit.svg import ChartLine, number

SMALL = 12
"""Tenants (topics) with a chart of their own."""
SHARES = (0.5, 0.9, 0.99)

_STYLE = "report.css"

_COUNTS = (
    ("published", "published"),
    ("delivered", "delivered"),
    ("in_store", "still in the store"),
    ("unfinished", "unfinished"),
    ("dead", "dead letters"),
    ("dropped", "dropped or recalled"),
    ("lost_by_store", "lost by the store"),
    ("merged", "merged"),
    ("publishes_unknown", "outcome unknown"),
    ("finished_unseen", "finished by a killed host"),
    ("lost", "lost"),
)


def check(path: Path) -> None:
    """Raise `InvalidSettings` if the report's directory does not exist; called before the audit does its work."""
    if not path.absolute().parent.is_dir():
        raise errors.InvalidSettings(f"report {str(path)!r} cannot be written: there is no such directory; make it")


def write(path: Path, result: Audit) -> None:
    """Write the report.

    Raises:
        InvalidSettings: the file cannot be written; name another.
    """
    try:
        path.write_text(render(result), encoding="utf-8")
    except OSError as exc:
        raise errors.InvalidSettings(
            f"report {str(path)!r} cannot be written ({exc.strerror}); name another file"
        ) from exc


def render(result: Audit) -> str:
    """Return the report as HTML text."""
    # Broken promises come before the charts, excused findings after them.
    broken, allowed = ([k for k in result.kinds if k.excused is x] for x in (False, True))
    parts = (_head(result), _promises(result), _findings("Findings", broken), _pictures(result.charts))
    body = "".join(text for part in (*parts, _findings("Allowed", allowed), _notes(result)) for text in part)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>EMQ audit</title>'
        f"<style>{_style()}</style></head><body><main>{body}</main></body></html>\n"
    )


def _style() -> str:
    return resources.files(__package__).joinpath(_STYLE).read_text(encoding="utf-8")


def _head(result: Audit) -> Iterator[str]:
    if result.broken:
        css, verdict = "bad", f"Broken: {', '.join(result.broken)}"
    elif result.flaws:
        css, verdict = "void", "Void: trail or ledger is not complete"
    elif result.unjudged:
        css, verdict = "void", f"Kept as far as judged; not judged: {', '.join(result.unjudged)}"
    else:
        css, verdict = "good", "Every promise was kept"
    counts = result.counts
    yield f'<header class="{css}"><h1>{html.escape(verdict)}</h1>'
    believed = f" · {result.believed}" if result.believed else ""
    read = f"{counts['events']:,} events in {counts['segments']:,} segments"
    yield f"<p>{read}, {_period(result.charts)}{believed}</p></header>"
    for flaw in (*result.flaws, *(f"{letter}: {why}" for letter, why in result.unjudged.items())):
        yield f'<p class="flaw">{html.escape(flaw)}</p>'
    yield '<section class="counts">'
    for name, text in _COUNTS:
        if counts[name] or name in ("published", "delivered", "lost"):
            yield f"<div><b>{counts[name]:,}</b>{text}</div>"
    yield "</section>"


def _promises(result: Audit) -> Iterator[str]:
    yield '<section class="promises">'
    for letter, text in NAMES.items():
        count = result.broken.get(letter, 0)
        css, said = ("bad", f"{count:,} broken") if count else ("good", "kept")
        if not count and letter in result.unjudged:
            css, said = "void", "not judged"
        elif not count and result.flaws:
            css, said = "void", "not proved"
        yield f'<div class="{css}"><b>{letter}</b><span>{html.escape(text)}</span><i>{said}</i></div>'
    yield "</section>"


def _pictures(charts: Charts) -> Iterator[str]:
    ends = (_clock(charts.first_s), _clock(charts.first_s + charts.step_s * len(charts.total.started)))
    total = charts.total
    yield '<section class="two">'
    flow = [ChartLine(total.published, "p1"), ChartLine(total.started, "p0", True)]
    yield _figure(
        "Published and started a second",
        f"{_key('p1', 'published')}{_key('p0', 'started')}{_cap(total)}",
        svg.lines(flow, 560, 190, cap=total.cap, ends=ends),
    )
    yield _figure(
        "Lag: published and not finished",
        f"highest {max(total.lag, default=0):,}",
        svg.lines([ChartLine(total.lag, "p2", True)], 560, 190, ends=ends),
    )
    yield _figure("Wait from publish to first start", _waits_key(charts), svg.waits(charts.waits, 560, 190))
    last_us = (charts.first_s + charts.step_s * len(total.started)) * 1e6
    yield _figure(
        "Pauses when groups moved",
        _pauses_key(charts),
        svg.dots(charts.pauses, charts.first_s * 1e6, last_us, 560, 190, ends=ends),
    )
    yield "</section>"
    yield from _tenants(charts)


def _tenants(charts: Charts) -> Iterator[str]:
    if not charts.tenants:
        return
    shown = f"the {len(charts.tenants)} busiest of {charts.all_tenants:,}"
    rows = [(s.name, [v / (s.cap or s.peak or 1) for v in s.started]) for s in charts.tenants]
    yield _figure(
        "How much of its cap each tenant used",
        f"{shown}; dark is all of it, red where a second exceeded it",
        svg.heat(rows, 1140, [s.broken for s in charts.tenants]),
        "wide",
    )
    yield '<section class="small">'
    for series in charts.tenants[:SMALL]:
        yield _small(series)
    yield "</section>"


def _small(series: Series) -> str:
    rate = svg.lines([ChartLine(series.started, "p0", True)], 270, 70, cap=series.cap, axis=False)
    lag = svg.lines([ChartLine(series.lag, "p2", True)], 270, 34, axis=False)
    cap = f" of {number(series.cap)}" if series.cap else ""
    return (
        f"<figure><figcaption><b>{html.escape(series.name)}</b><span>peak {number(series.peak)}{cap}/s</span>"
        f"</figcaption>{rate}{lag}<small>lag up to {max(series.lag, default=0):,}</small></figure>"
    )


def _findings(title: str, kinds: Sequence[Kind]) -> Iterator[str]:
    if kinds:
        yield f"<h2>{title}</h2><table><tr><th></th><th>what</th><th>how many</th><th>for example</th></tr>"
        yield from map(_kind, kinds)
        yield "</table>"


def _notes(result: Audit) -> Iterator[str]:
    if result.notes:
        yield "<h2>Notes</h2><ul>" + "".join(f"<li>{html.escape(note)}</li>" for note in result.notes) + "</ul>"


def _kind(kind: Kind) -> str:
    css = "void" if kind.excused else "bad"
    examples = "<br>".join(map(html.escape, kind.examples))
    cells = f"<td>{html.escape(kind.kind)}</td><td>{kind.count:,}</td><td>{examples}</td>"
    return f'<tr><td class="{css}">{kind.promise}</td>{cells}</tr>'


# ----------------------------------------------------------------------------------------------------------- captions


def _figure(title: str, text: str, picture: str, css: str = "") -> str:
    return f'<figure class="{css}"><figcaption><b>{title}</b><span>{text}</span></figcaption>{picture}</figure>'


def _key(css: str, text: str) -> str:
    return f'<em class="{css}">{html.escape(text)}</em>'


def _cap(series: Series) -> str:
    return f'<em class="capkey">cap {number(series.cap)}</em>' if series.cap else ""


def _waits_key(charts: Charts) -> str:
    texts = []
    for i, (priority, found) in enumerate(charts.waits.items()):
        half, _, most = (_quantile(found, share) for share in SHARES)
        name = charts.priorities.get(priority, f"priority {priority}")
        texts.append(_key(f"p{i % 4}", f"{name}: p50 {brief(us=half)}, p99 {brief(us=most)}"))
    return "".join(texts)


def _quantile(found: Sequence[tuple[float, int]], share: float) -> float:
    """Return the wait in microseconds that this share of messages did not exceed, to a quarter of a doubling."""
    wanted, reached = share * sum(n for _, n in found), 0
    for us, n in found:
        reached += n
        if reached >= wanted:
            return us
    return 0.0


def _pauses_key(charts: Charts) -> str:
    if not charts.all_pauses:
        return "no group moved"
    texts = []
    for css, clean, what in (("good", True, "handed over"), ("bad", False, "after a crash")):
        gaps = sorted(p.gap_us for p in charts.pauses if p.clean is clean)
        if gaps:
            half, most = (brief(us=gap) for gap in (gaps[(len(gaps) - 1) // 2], gaps[-1]))
            said = f"half within {half}, longest {most}"
            texts.append(_key(css, f"{len(gaps):,} {what}: {said}"))
    if charts.all_pauses > len(charts.pauses):
        texts.append(f"the longest {len(charts.pauses):,} of {charts.all_pauses:,} moves")
    return "".join(texts)


def _period(charts: Charts) -> str:
    last_s = charts.first_s + charts.step_s * len(charts.total.started)
    return f"{_clock(charts.first_s, '%Y-%m-%d %H:%M:%S')} to {_clock(last_s)} UTC"


def _clock(time_s: float, shape: str = "%H:%M:%S") -> str:
    return time.strftime(shape, time.gmtime(time_s))
