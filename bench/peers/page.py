"""Writes docs/compared.md and its chart from the JSON of a run: `python -m bench.peers.page FILE [--to FOLDER]`."""

from __future__ import annotations

import argparse
import html
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.peers import ratios
from bench.peers.field import EACH, PEERS, ROOT
from bench.peers.ratios import Result

Figures = Mapping[str, Any]
_NOT_RUN, _NOT_MEASURED = "not run", "-"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.peers.page", description=__doc__)
    parser.add_argument("file", type=Path, help="what `python -m bench peers --json` printed")
    parser.add_argument("--to", type=Path, default=ROOT / "docs", help="folder (default: docs)")
    parser.add_argument("--note", default="", help="a sentence about the run, such as what else ran on the machine")
    args = parser.parse_args(argv)
    run = {**json.loads(args.file.read_text()), "note": args.note}
    (args.to / "compared.md").write_text(page(run))
    (args.to / "assets").mkdir(exist_ok=True)
    (args.to / "assets" / "compared.svg").write_text(chart(run["results"]))
    print("\n".join(readme_rows(run["results"])))
    return 0


def page(run: Mapping[str, Any]) -> str:
    """Return the whole page."""
    results: Sequence[Result] = run["results"]
    parts = [
        "# Compared\n",
        HEAD.format(date=run["date"], machine=run["machine"]),
        _shape(run),
        *([f"{run['note']}\n"] if run.get("note") else []),
        "![Messages a second from 3,000 queues, with an empty handler](assets/compared.svg)\n",
        f"EMQ's rate from 3,000 queues with an empty handler is {_ratio(run['fastest_python_ratio'])} that of the"
        f" fastest Python peer, and {_ratio(run['any_peer_ratio'])} that of the fastest of all peers.\n",
        "## Figures\n",
        *_tables(results),
        "## Where a peer is better\n",
        better(results),
        "## The peers\n",
        _peers(results),
        HOW,
    ]
    return "\n".join(parts)


def table(
    results: Sequence[Result], works: Iterable[str], cell: Callable[[Figures], str], labels: Sequence[str]
) -> str:
    """Return a table with a row for each peer and a column for each work."""
    names = list(works)
    lines = [f"| | {' | '.join(labels)} |", "|---|" + "---:|" * len(names)]
    for result in results:
        cells = [cell_of(result, name, cell) for name in names]
        lines.append(f"| {result['name']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def cell_of(result: Result, work: str, cell: Callable[[Figures], str]) -> str:
    """Return what a cell says: figures, or why there are none."""
    if result["not_run"]:
        return _NOT_RUN
    figures = result["works"].get(work)
    if figures is None:
        return _NOT_MEASURED
    if "not_run" in figures:
        return _NOT_RUN
    return str(figures["none"]) if "none" in figures else cell(figures)


def better(results: Sequence[Result]) -> str:
    """Return a list of all figures in which a peer is better than EMQ."""
    own = next((one for one in results if one["name"] == "EMQ"), None)
    lines = []
    for work, figure, text, more_is_better in _judged(results):
        mine = own["works"].get(work, {}).get(figure) if own is not None else None
        if mine is None:
            continue
        ahead = []
        for one in results:
            theirs = one["works"].get(work, {}).get(figure)
            if one is not own and theirs is not None and (theirs > mine if more_is_better else theirs < mine):
                ahead.append(f"{one['name']} {theirs:,}")
        if ahead:
            lines.append(f"- **{text}**: {', '.join(ahead)}; EMQ {mine:,}.")
    return "\n".join(lines) + "\n" + WHY if lines else "In none of these figures.\n"


def chart(results: Sequence[Result], work: str = ratios.OF) -> str:
    """Return an SVG with a bar for each peer, on a logarithmic scale."""
    rates = [(one["name"], ratios.rate(one, work)) for one in results if ratios.rate(one, work)]
    rates.sort(key=lambda pair: -pair[1])
    left, width, height, bar = 130, 520, 26, 18
    top = max((rate for _, rate in rates), default=1.0)
    scale = width / max(math.log10(top), 1.0)
    parts = []
    for row, (name, rate) in enumerate(rates):
        y = 30 + row * height
        length = max(1.0, math.log10(max(rate, 1.0)) * scale)
        fill = "#3f51b5" if name == "EMQ" else "#9aa0b5"
        parts.append(f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{html.escape(name)}</text>')
        parts.append(f'<rect x="{left}" y="{y}" width="{length:.0f}" height="{bar}" fill="{fill}"/>')
        parts.append(f'<text x="{left + length + 6:.0f}" y="{y + 13}">{rate:,.0f}</text>')
    size = f'width="{left + width + 90}" height="{40 + height * len(rates)}"'
    title = "Messages a second (logarithmic scale): 3,000 queues, empty handler"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">\n'
        f'<rect width="100%" height="100%" fill="#fff"/>\n<text x="{left}" y="18" font-weight="bold">{title}</text>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def readme_rows(results: Sequence[Result]) -> list[str]:
    """Return three rows for the table of the README: EMQ beside the best Python peer and the best of all."""
    rows = ["| | EMQ | fastest Python peer | fastest of all peers |", "|---|---:|---:|---:|"]
    texts = {
        "drain-3000": "3,000 queues, empty handler, messages a second",
        "wait-3000": "the same, handlers wait 50 ms",
    }
    own = next(one for one in results if one["name"] == "EMQ")
    for work, text in texts.items():
        if not ratios.rate(own, work):
            continue
        best = [ratios.fastest(results, python_only=only, work=work) for only in (True, False)]
        told = [f"{ratios.rate(one, work):,.0f} ({one['name']})" if one else _NOT_MEASURED for one in best]
        rows.append(f"| {text} | {ratios.rate(own, work):,.0f} | {' | '.join(told)} |")
    floods = [
        (one["works"]["flood"]["flood_p99_ms"], one)
        for one in results
        if one["name"] != "EMQ" and "flood_p99_ms" in one["works"].get("flood", {})
    ]
    if floods and "flood_p99_ms" in own["works"].get("flood", {}):
        told = []
        for rivals in ([pair for pair in floods if pair[1]["language"] == "Python"], floods):
            least = min(rivals, key=lambda pair: pair[0], default=None)
            told.append(f"{least[0]:,} ({least[1]['name']})" if least else _NOT_MEASURED)
        mine = own["works"]["flood"]["flood_p99_ms"]
        rows.append(f"| p99 wait of 200 tenants beside a flood, ms | {mine:,} | {' | '.join(told)} |")
    capped = [
        (one["works"]["caps"]["cpu_percent"], one)
        for one in results
        if one["name"] != "EMQ" and "cpu_percent" in one["works"].get("caps", {})
    ]
    if capped and "cpu_percent" in own["works"].get("caps", {}):
        told = []
        for rivals in ([pair for pair in capped if pair[1]["language"] == "Python"], capped):
            least = min(rivals, key=lambda pair: pair[0], default=None)
            told.append(f"{_caps(least[1]['works']['caps'])} ({least[1]['name']})" if least else "none has caps")
        text = "100 queues capped at 10 a second: starts in a second"
        rows.append(f"| {text} | {_caps(own['works']['caps'])} | {' | '.join(told)} |")
    return rows


def _tables(results: Sequence[Result]) -> list[str]:
    known = dict.fromkeys(name for one in results for name in one["works"])
    parts = []
    for kind, title, cell in (
        ("drain", "Publish / drain with an empty handler, messages a second", _rates),
        ("wait", "Drain with a handler that waits 50 ms, messages a second", _drained),
        ("idle", "Idle workers: memory / their CPU / the server's CPU", _idle),
    ):
        names = [name for name in known if name.startswith(f"{kind}-")]
        if names:
            labels = [_queues(name) for name in names]
            parts.append(f"### {title}\n\n{table(results, names, cell, labels)}")
    single = [name for name in ("caps", "flood", "new", "kill") if name in known]
    if single:
        lines = [f"| | {' | '.join(_SINGLE[name][0] for name in single)} |", "|---|" + "---|" * len(single)]
        for one in results:
            lines.append(f"| {one['name']} | {' | '.join(cell_of(one, n, _SINGLE[n][1]) for n in single)} |")
        parts.append("### Caps, a flood, new tenants, kill -9\n\n" + "\n".join(lines) + "\n")
    reasons = [
        f"- {one['name']}, {name}: {figures['not_run']}"
        for one in results
        for name, figures in one["works"].items()
        if "not_run" in figures
    ]
    reasons += [f"- {one['name']}: {one['not_run']}" for one in results if one["not_run"]]
    if reasons:
        parts.append("Not run:\n\n" + "\n".join(reasons) + "\n")
    return parts


def _queues(work: str) -> str:
    count = int(work.partition("-")[2])
    return f"{count:,} queue{'' if count == 1 else 's'}"


def _rates(figures: Figures) -> str:
    cut = "" if figures["started"] >= figures["published"] else " (cut)"
    return f"{figures['published_per_s']:,} / {figures['drained_per_s']:,}{cut}"


def _drained(figures: Figures) -> str:
    return f"{figures['drained_per_s']:,}"


def _idle(figures: Figures) -> str:
    busy = "" if figures["left"] <= 0 else " (still busy)"
    return f"{figures['memory_mb']:,} MB / {figures['cpu_percent']} % / {figures['server_cpu_percent']} %{busy}"


def _caps(figures: Figures) -> str:
    return f"{figures['least']} to {figures['most']}, {figures['cpu_percent']} % CPU"


def _flood(figures: Figures) -> str:
    ratio = "overloaded in calm" if figures["ratio"] is None else f"{figures['ratio']:,} times"
    late = f", {figures['late']:,} not started" if figures["late"] > 0 else ""
    waits = f"{figures['calm_p99_ms']:,} / {figures['flood_p99_ms']:,} ms"
    return f"{waits}, {ratio}; flood of {figures['flooded']:,}{late}"


def _new(figures: Figures) -> str:
    if figures["needs"] != "nothing":
        return f"needs {figures['needs']}"
    late = f", {figures['undelivered']} not delivered" if figures["undelivered"] else ""
    return f"nothing; p50 {figures['p50_ms']:,} ms, p99 {figures['p99_ms']:,} ms{late}"


def _kill(figures: Figures) -> str:
    flows = "not all flow" if figures["flows_s"] is None else f"{figures['flows_s']} s"
    return f"{figures['missing']} / {figures['repeated']} / {flows}"


_SINGLE: dict[str, tuple[str, Callable[[Figures], str]]] = {
    "caps": ("100 queues capped at 10: starts in a second", _caps),
    "flood": ("p99 of 200 tenants: calm / beside a flood", _flood),
    "new": ("1,000 new tenants: set-up; first delivery", _new),
    "kill": ("kill -9: lost / repeated / all flow after", _kill),
}


def _judged(results: Sequence[Result]) -> list[tuple[str, str, str, bool]]:
    """Return (work, figure, how the page calls it, whether more is better) of all figures that can be compared."""
    known = dict.fromkeys(name for one in results for name in one["works"])
    found = []
    for name in known:
        kind = name.partition("-")[0]
        if kind == "drain":
            found.append((name, "published_per_s", f"Publish to {_queues(name)}, messages a second", True))
        if kind in ("drain", "wait"):
            what = "empty handler" if kind == "drain" else "handler that waits"
            found.append((name, "drained_per_s", f"Drain {_queues(name)}, {what}, messages a second", True))
        if kind == "idle":
            found.append((name, "memory_mb", f"Memory with {_queues(name)}, MB", False))
            found.append((name, "cpu_percent", f"Idle CPU with {_queues(name)}, %", False))
        if kind == "flood":
            found.append((name, "calm_p99_ms", "p99 wait of 200 tenants in calm, ms", False))
            found.append((name, "flood_p99_ms", "p99 wait of 200 tenants beside a flood, ms", False))
        if kind == "new":
            found.append((name, "p99_ms", "First delivery to a new tenant, p99, ms", False))
        if kind == "kill":
            found.append((name, "missing", "Lost in a kill -9, messages", False))
            found.append((name, "repeated", "Repeated after a kill -9, messages", False))
            found.append((name, "flows_s", "Until all queues flow again after a kill -9, s", False))
    return found


def _peers(results: Sequence[Result]) -> str:
    lines = ["| | versions | queues | configuration |", "|---|---|---|---|"]
    notes = {peer.name: peer for peer in PEERS}
    for one in results:
        server = notes[one["name"]].server if one["name"] in notes else ""
        kept = one["queues"] if one["queues"] != EACH else "a queue for each tenant"
        on = "Valkey" if server == "redis" else server
        lines.append(f"| {one['name']} | {one['version'] or _NOT_RUN} | {kept} | {one['configuration']}; on {on} |")
    return "\n".join(lines) + "\n"


def _shape(run: Mapping[str, Any]) -> str:
    return (
        f"Drains have at most {run['messages']:,} messages; publishing is cut after {run['publish_s']:g} s and draining"
        f" after {run['drain_s']:g} s, and the rate until then stands. Idle workers, caps, calm and flood are watched"
        f" for {run['seconds']:g} s. One run each; the order of size counts, not the last digit.\n"
    )


def _ratio(value: float) -> str:
    return f"{value:g} times" if value else "(not measured)"


HEAD = """EMQ beside what people use for the same work today, on one machine, in one run. `make bench-peers` installs
the peers into `.peers/`, and `python -m bench peers` repeats this page's figures. `--only NAME`, `--work NAME` and
`--short` repeat a part.

Measured on {date}: {machine}. Servers, publishers and workers share these cores. Messages have 100 bytes.
"""

WHY = """
Publishing is cheaper for a client that does not wait for the server's answer (RabbitMQ without confirms). A broker that
is a program of its own (NATS, beanstalkd, RabbitMQ) leaves the worker less to do. A peer with one queue for all tenants
has nothing to hold for a tenant: its memory does not depend on the number of tenants, and a new one costs it nothing.
In exchange, a flood of one tenant delays all. Peers that acknowledge a message before its handler runs repeat nothing
after a kill, and lose what was in flight. EMQ repeats what ended since its last checkpoint, about a second of work, and
its queues wait until another host has taken them: each queue has one host, so that its rate holds.
"""

HOW = """## How the benchmark measures

- Each piece of work gets a new server on loopback, in memory. Publisher and worker are processes of their own, run by
  the peer's own interpreter with the settings that its documentation recommends for speed; `bench/peers/drivers/` has a
  short program for each. A peer that uses several processes gets one for each core, at most 2. EMQ has one.
- A drain goes from the first start of a handler to the last. The handler adds one to a counter in shared memory.
  "(cut)": time was up before the last. Where a peer still started threads or connections until then, as dramatiq does
  for thousands of queues, a longer run gives a higher rate.
- "One queue, the tenant is an argument": the peer's worker reads one queue, or its documentation advises against
  thousands. All messages are then in one queue, which is faster, and keeps no tenants apart.
- Memory is the proportional set size of all worker processes. CPU is theirs in percent of one core.
- Caps: least and most starts of a queue in a whole second of the clock.
- Flood: 200 tenants publish 400 messages a second together, the handler waits 20 ms and at most 100 messages are in
  flight; beside them one tenant publishes 20,000 at once. A tenant of EMQ has a rate of 20 a second. The wait goes from
  the publish to the start of the handler. A publisher that is slow makes a smaller flood; the table tells its size.
- New tenants: 1,000 publishes to names that the running workers have not seen, 100 a second.
- Kill: 20 queues, 200 messages a second, the handler waits 50 ms. All worker processes are killed at once, and others
  start at once. Lost: without an end when the run ends; some peers would deliver these after minutes. Repeated: started
  more than once.
"""


if __name__ == "__main__":
    sys.exit(main())
