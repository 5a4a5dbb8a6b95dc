"""`make bench-check`: runs the core benchmarks in turns with those of an older commit, and names what fell.

The older commit is built beside the checkout, with its own packages, so that its figures come from the same machine in
the same minutes. A figure fell if its median over all pairs of runs is worse by more than the bound, and if it is worse
in each single pair: the speed of a shared machine drifts, but not in step with the turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import rich.console
import rich.progress
import rich.table

ROOT = Path(__file__).parent.parent
BASELINE = (Path(__file__).parent / "baseline").read_text().split()[0]
"""The commit to compare with. Move it forward when the figures have become better, never when one has fallen."""

WORSE = 1.1
WORSE_SHORT = 1.5
"""How many times worse a median may be; with few and short runs only the larger one can be told from chance."""


class Run(NamedTuple):
    """One benchmark, and its figures that count: those of `more` should be high, those of `less` low."""

    name: str
    options: Mapping[str, int]
    more: Sequence[str]
    less: Sequence[str]


RUNS = (
    Run("host", {"queues": 100, "messages": 3_000_000}, ("consumed_per_s",), ("rss_mb",)),
    Run("host", {"queues": 3_000, "messages": 3_000_000}, ("consumed_per_s",), ("rss_mb",)),
    Run("host", {"queues": 60_000, "messages": 3_000_000}, ("consumed_per_s",), ("start_s", "rss_mb")),
    Run("rmq", {"messages": 500_000}, ("add_per_s", "consume_per_s"), ()),
    Run("publish", {"messages": 1_000_000}, ("batched_per_s", "single_per_s"), ()),
    Run("idle", {"queues": 60_000, "seconds": 20}, (), ("cpu_percent", "start_s", "rss_mb")),
    Run("wake", {"queues": 60_000, "count": 1_000}, (), ("p50_ms",)),
)
RUNS_SHORT = (
    Run("host", {"queues": 100, "messages": 500_000}, ("consumed_per_s",), ("rss_mb",)),
    Run("host", {"queues": 12_000, "messages": 300_000}, (), ("start_s", "rss_mb")),
    Run("rmq", {"messages": 100_000}, ("consume_per_s",), ()),
)


class Verdict(NamedTuple):
    """One figure of one benchmark.

    Attributes:
        before, now: medians of the older commit and of today's code.
        worse: how many times worse today's code is, in the median over all pairs of runs; below 1 if it is better.
        least: the same in the pair in which it is least so.
    """

    figure: str
    before: float
    now: float
    worse: float
    least: float

    def fell(self, bound: float) -> bool:
        return self.worse > bound and self.least > 1


def judged(run: Run, before: Sequence[Mapping[str, float]], now: Sequence[Mapping[str, float]]) -> list[Verdict]:
    """Compare the pairs of runs of one benchmark, figure by figure."""
    verdicts = []
    options = " ".join(f"{key}={value:,}" for key, value in run.options.items())
    for name in (*run.more, *run.less):
        pairs = [(b[name], n[name]) for b, n in zip(before, now, strict=True)]
        ratios = [b / n if name in run.more else n / b for b, n in pairs]
        then, today = (statistics.median(side) for side in zip(*pairs, strict=True))
        verdicts.append(Verdict(f"{run.name} {options}: {name}", then, today, statistics.median(ratios), min(ratios)))
    return verdicts


def built(commit: str) -> Path:
    """Return a checkout of the commit with its packages installed, which is made at the first call."""
    place = ROOT / ".bench" / commit
    if not (place / ".git").exists():
        subprocess.run(["git", "worktree", "prune"], cwd=ROOT, check=True)
        subprocess.run(["git", "worktree", "add", "--force", "--detach", str(place), commit], cwd=ROOT, check=True)
    subprocess.run(["make", "setup"], cwd=place, check=True, stdout=subprocess.DEVNULL)
    return place


def measured(place: Path, run: Run) -> dict[str, Any]:
    """Run a benchmark in a checkout; return its figures."""
    options = [word for key, value in run.options.items() for word in (f"--{key}", str(value))]
    words = [str(place / ".venv/bin/python"), "-m", "bench", run.name, "--json", *options]
    done = subprocess.run(words, cwd=place, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"bench {run.name} in {place} failed:\n{done.stderr}")
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.check", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--short", action="store_true", help="few benchmarks with little work, and a wider bound")
    parser.add_argument("--pairs", type=int, default=5, help="runs of each benchmark and commit (default: 5)")
    parser.add_argument("--baseline", default=BASELINE, help=f"the commit to compare with (default: {BASELINE[:8]})")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    args = parser.parse_args()
    known = subprocess.run(["git", "cat-file", "-e", f"{args.baseline}^{{commit}}"], cwd=ROOT, capture_output=True)
    if known.returncode:
        print(
            f"bench-check: commit {args.baseline[:8]} is not in this copy of the history; fetch all of it",
            file=sys.stderr,
        )
        return 2
    console = rich.console.Console(stderr=True, quiet=args.json)
    console.print(f"[dim]building {args.baseline[:8]} beside this checkout[/]")
    places = (built(args.baseline), ROOT)
    runs, bound = (RUNS_SHORT, WORSE_SHORT) if args.short else (RUNS, WORSE)
    verdicts: list[Verdict] = []
    with rich.progress.Progress(console=console) as progress:
        task = progress.add_task("measuring", total=len(runs) * args.pairs * 2)
        for run in runs:
            figures: dict[Path, list[dict[str, Any]]] = {place: [] for place in places}
            for pair in range(args.pairs):
                for place in places if pair % 2 else reversed(places):  # whoever comes second may find a warmer machine
                    figures[place].append(measured(place, run))
                    progress.advance(task)
            verdicts += judged(run, *figures.values())
    fallen = [verdict for verdict in verdicts if verdict.fell(bound)]
    if args.json:
        rows = [verdict._asdict() | {"fell": verdict.fell(bound)} for verdict in verdicts]
        print(json.dumps({"baseline": args.baseline, "bound": bound, "figures": rows}))
    else:
        _print(args.baseline, verdicts, bound)
    return 1 if fallen else 0


def _print(baseline: str, verdicts: Sequence[Verdict], bound: float) -> None:
    table = rich.table.Table(title=f"figures of {baseline[:8]} and of today's code, medians", title_justify="left")
    for column in ("figure", "then", "now", "times worse"):
        table.add_column(column, justify="left" if column == "figure" else "right")
    table.add_column("")
    for verdict in verdicts:
        mark = f"[red]fell, more than {bound:g} times worse[/]" if verdict.fell(bound) else "[green]holds[/]"
        table.add_row(verdict.figure, f"{verdict.before:,.4g}", f"{verdict.now:,.4g}", f"{verdict.worse:.2f}", mark)
    rich.console.Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
