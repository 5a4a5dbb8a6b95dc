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
from bench.support.stage import STORES, Stage, kind_of
from emq.runtime import passwords
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
    "calls": "engine",
    "trail": "engine",
    "publish": "engine",
    "peers": "peers",
    "gateway": "gateway",
    "topics": "engine",
    "tenants": "tenants",
    "growth": "growth",
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
        # The defaults depend on `--short`, so it cannot be abbreviated.
        command = commands.add_parser(name, help=(module.__doc__ or "").splitlines()[0], allow_abbrev=False)
        first = module.BENCHMARK.stores[0]
        kinds = ", ".join(STORES)
        text = f"a new store ({kinds}), or the URL of an empty one that is there (default: {first})"
        command.add_argument("--store", default=first, help=text)
        text = "URL of an empty catalog that is there (default: a new SQLite file)"
        command.add_argument("--database", default="", help=text)
        command.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
        if module.BENCHMARK.short:
            command.add_argument("--short", action="store_true", help="small defaults, for two cores and for tests")
        short = module.BENCHMARK.short if "--short" in arguments else {}
        for option, usual, text in module.BENCHMARK.options:
            default = short.get(option, usual)
            if default is False:
                command.add_argument(f"--{option}", action="store_true", help=text)
            else:
                command.add_argument(
                    f"--{option}", type=type(default), default=default, help=f"{text} (default: {default})"
                )
    args = parser.parse_args(argv)
    benchmark = benchmarks[args.name]
    if kind_of(args.store) not in benchmark.stores:
        known = ", ".join(benchmark.stores)
        parser.error(f"benchmark {args.name!r} runs on {known}, not on {passwords.hide_password(args.store)!r}")
    options = {option.replace("-", "_"): getattr(args, option.replace("-", "_")) for option, _, _ in benchmark.options}
    try:
        with Stage(args.store, args.database, quiet=args.json) as stage:
            values: dict[str, Any] = uvloop.run(benchmark.run(stage, **options))
    except EMQError as exc:
        print(f"bench {args.name}: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"bench {args.name}: interrupted", file=sys.stderr)
        return 1
    options = benchmark.concerning(options)
    if args.json:
        print(json.dumps({"bench": args.name, "store": stage.store, **options, **values}))
    else:
        _print(args.name, stage.store, options, benchmark.figures, values)
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
        if isinstance(value, list):  # for `--json`; the benchmark has told it line by line
            continue
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
