"""The result of an audit as one HTML file with charts and tables. The page is in `templates/`."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import jinja2

from emq.runtime import errors, plurals
from emq.runtime.durations import brief
from emq_spark.audit.charts import Charts, Series
from emq_spark.audit.findings import NAMES
from emq_spark.audit.result import Audit

SMALL = 12
"""Most tenants (topics) with a chart of their own."""

Key = list[tuple[str, str]]
"""The meaning of a chart's colours: the class of each colour ("" for none) and the text."""

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
_ALWAYS = ("published", "delivered", "lost")
_SHADES = "dark is all of it, red where a second exceeded it"


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
    charts, total = result.charts, result.charts.total
    last_s = charts.first_s + charts.step_s * len(total.started)
    every_us = [us for found in charts.waits.values() for us, _ in found] or [1e3, 1e6]
    css, verdict = _verdict(result)
    page = jinja2.Environment(
        loader=jinja2.PackageLoader("emq_spark.audit"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page.filters |= {"brief": lambda us: brief(us=us), "log10": math.log10, "number": number}
    return page.get_template("report.html").render(
        css=css,
        verdict=verdict,
        read=_read(result, last_s),
        flaws=[*result.flaws, *(f"{letter}: {why}" for letter, why in result.unjudged.items())],
        counts=[(result.counts[name], text) for name, text in _COUNTS if result.counts[name] or name in _ALWAYS],
        promises=_promises(result),
        # Broken promises come before the charts, excused findings after them.
        broken=[kind for kind in result.kinds if not kind.excused],
        allowed=[kind for kind in result.kinds if kind.excused],
        notes=result.notes,
        charts=charts,
        total=total,
        ends=(_clock(charts.first_s), _clock(last_s)),
        last_s=last_s,
        flow_key=[("p1", "published"), ("p0", "started")]
        + ([("capkey", f"cap {number(total.cap)}")] * (total.cap > 0)),
        flow_most=nice(max([total.cap, *total.published, *total.started])),
        lag_key=[("", f"highest {max(total.lag, default=0):,}")],
        lag_most=nice(max(total.lag, default=0)),
        waits_key=_waits_key(charts),
        curves=[[*_curve(found)] for found in charts.waits.values()],
        decades=(math.floor(math.log10(min(every_us))), math.ceil(math.log10(max(every_us) * 1.19))),
        pauses_key=_pauses_key(charts),
        tenants_key=[("", f"the {len(charts.tenants)} busiest of {charts.all_tenants:,}; {_SHADES}")],
        heat=[(series.name, _cells(series)) for series in charts.tenants],
        small=SMALL,
    )


def number(value: float) -> str:
    """Format a number shortly enough for an axis, such as 1.2k or 3.4M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def nice(value: float) -> float:
    """Return the next round number: 1, 2, 2.5 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * step for step in (1, 2, 2.5, 5, 10) if power * step >= value * 0.999)


def _verdict(result: Audit) -> tuple[str, str]:
    if result.broken:
        return "bad", f"Broken: {', '.join(result.broken)}"
    if result.flaws:
        return "void", "Void: trail or ledger is not complete"
    if result.unjudged:
        return "void", f"Kept as far as judged; not judged: {', '.join(result.unjudged)}"
    return "good", "Every promise was kept"


def _read(result: Audit, last_s: float) -> str:
    counts, first_s = result.counts, result.charts.first_s
    believed = f" · {result.believed}" if result.believed else ""
    period = f"{_clock(first_s, '%Y-%m-%d %H:%M:%S')} to {_clock(last_s)} UTC"
    read = f"{plurals.count(counts['events'], 'event')} in {plurals.count(counts['segments'], 'segment')}"
    return f"{read}, {period}{believed}"


def _promises(result: Audit) -> Iterator[tuple[str, str, str, str]]:
    """Yield class, letter, text and verdict of each promise."""
    for letter, text in NAMES.items():
        count = result.broken.get(letter, 0)
        css, said = ("bad", f"{count:,} broken") if count else ("good", "kept")
        if not count and letter in result.unjudged:
            css, said = "void", "not judged"
        elif not count and result.flaws:
            css, said = "void", "not proved"
        yield css, letter, text, said


def _curve(found: Sequence[tuple[float, int]]) -> Iterator[tuple[float, float]]:
    """Yield times in microseconds, each with the share of messages that waited at most this long."""
    total, reached = sum(n for _, n in found), 0
    yield found[0][0], 0.0
    for us, n in found:
        reached += n
        yield us * 2**0.25, reached / total  # a bucket's waits are up to a quarter of a doubling longer than `us`


def _cells(series: Series) -> list[str]:
    """Return a class for each bucket: the used part of the tenant's cap, or that the cap was found exceeded."""
    most = series.cap or series.peak or 1
    return [
        "over" if i in series.broken else f"h{min(8, math.ceil(v / most * 8))}" for i, v in enumerate(series.started)
    ]


# --------------------------------------------------------------------------------------------------------------- keys


def _waits_key(charts: Charts) -> Key:
    key = []
    for i, (priority, found) in enumerate(charts.waits.items()):
        half, most = (brief(us=_quantile(found, share)) for share in (0.5, 0.99))
        key.append((f"p{i % 4}", f"{charts.priorities.get(priority, f'priority {priority}')}: p50 {half}, p99 {most}"))
    return key


def _quantile(found: Sequence[tuple[float, int]], share: float) -> float:
    """Return the wait in microseconds that this share of messages did not exceed, to a quarter of a doubling."""
    wanted, reached = share * sum(n for _, n in found), 0
    for us, n in found:
        reached += n
        if reached >= wanted:
            return us
    return 0.0


def _pauses_key(charts: Charts) -> Key:
    if not charts.all_pauses:
        return [("", "no group moved")]
    key = []
    for css, clean, what in (("good", True, "handed over"), ("bad", False, "after a crash")):
        gaps = sorted(p.gap_us for p in charts.pauses if p.clean is clean)
        if gaps:
            half, most = (brief(us=gap) for gap in (gaps[(len(gaps) - 1) // 2], gaps[-1]))
            key.append((css, f"{len(gaps):,} {what}: half within {half}, longest {most}"))
    if charts.all_pauses > len(charts.pauses):
        key.append(("", f" · the longest {len(charts.pauses):,} of {plurals.count(charts.all_pauses, 'move')}"))
    return key


def _clock(time_s: float, shape: str = "%H:%M:%S") -> str:
    return time.strftime(shape, time.gmtime(time_s))
