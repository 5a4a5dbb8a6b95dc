"""Runs one benchmark by name and prints its figures."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from typing import Any

import rich.console
import rich.table
import uvloop

from bench.support.figures import Benchmark, Figure, holds
from bench.support.stage import STORES, Stage
from emq.runtime.errors import EMQError

NAMES = {
    "floor": "engine",
    "host": "engine",
    "metrics": "engine",
    "waiting": "engine",
    "push": "engine",
    "api": "engine",
    "idle": "engine",
    "wake": "engine",
    "trail": "engine",
    "publish": "engine",
    "topics": "engine",
    "caps": "engine",
    "isolation": "engine",
    "rmq": "sorted",
    "timer": "sorted",
    "merge": "sorted",
    "allocation": "cluster",
    "handoff": "cluster",
    "scale": "cluster",
    "scheduling": "scheduling",
    "submit": "scheduling",
    "what-if": "scheduling",
    "audit": "spark",
    "load": "spark",
    "source": "spark",
    "spark-cluster": "spark",
}


def main(argv: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    benchmarks: dict[str, Benchmark] = {}
    # Import one benchmark alone: what the others import would count as memory of this one, and slow its collector.
    for name in [name for name in NAMES if name == next(iter(arguments), None)] or NAMES:
        module = importlib.import_module(f"bench.{NAMES[name]}.{name.replace('-', '_')}")
        benchmarks[name] = module.BENCHMARK
        command = commands.add_parser(name, help=(module.__doc__ or "").splitlines()[0])
        first = module.BENCHMARK.stores[0]
        command.add_argument("--store", choices=STORES, default=first, help=f"default: {first}")
        command.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
        for option, default, text in module.BENCHMARK.options:
            if default is False:
                command.add_argument(f"--{option}", action="store_true", help=text)
            else:
                command.add_argument(
                    f"--{option}", type=type(default), default=default, help=f"{text} (default: {default})"
                )
    args = parser.parse_args(argv)
    benchmark = benchmarks[args.name]
    if args.store not in benchmark.stores:
        parser.error(f"benchmark {args.name!r} runs on {', '.join(benchmark.stores)}, not on {args.store!r}")
    options = {option.replace("-", "_"): getattr(args, option.replace("-", "_")) for option, _, _ in benchmark.options}
    try:
        with Stage(args.store, quiet=args.json) as stage:
            values: dict[str, Any] = uvloop.run(benchmark.run(stage, **options))
    except EMQError as exc:
        print(f"bench {args.name}: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"bench {args.name}: interrupted", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps({"bench": args.name, "store": args.store, **options, **values}))
    else:
        _print(args.name, args.store, options, benchmark.figures, values)
    return 0


def _print(name: str, store: str, options: dict[str, Any], figures: Sequence[Figure], values: dict[str, Any]) -> None:
    shown = " ".join(f"{key}={value}" for key, value in options.items())
    table = rich.table.Table(title=f"{name} on {store}  {shown}", title_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_column("must show", justify="right")
    table.add_column("")
    wanted = {figure.name: figure for figure in figures}
    for key, value in values.items():
        figure = wanted.get(key)
        text = _text(value)
        verdict = "" if figure is None else "[green]yes[/]" if holds(figure, value) else "[red]no[/]"
        table.add_row(key, text, f"{figure.relation} {figure.bound:,}" if figure else "", verdict)
    rich.console.Console().print(table)


def _text(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else f"{value:,}"


if __name__ == "__main__":
    sys.exit(main())
