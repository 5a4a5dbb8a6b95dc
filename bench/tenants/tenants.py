"""The costs of tenants: of a first publish, of names that sleep, of rows, of awake topics, and of their plan.

Each run measures one part, on a store and a catalog that are empty before: `--part first`, `strangers`, `rows`,
`awake` or `plan`. The options of a part begin with its name.
"""

from __future__ import annotations

from typing import Any

from bench.cluster.crew import InvalidRun
from bench.support.figures import Benchmark
from bench.support.stage import Stage
from bench.tenants import awake, first, plan, rows, strangers

PARTS = {"first": first, "strangers": strangers, "rows": rows, "awake": awake, "plan": plan}

SIZES = tuple((f"{part}-{name}", *others) for part, module in PARTS.items() for name, *others in module.OPTIONS)


def concerning(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options without the sizes of other parts."""
    others = tuple(f"{part}_" for part in PARTS if part != options["part"])
    return {name: value for name, value in options.items() if not name.startswith(others)}


async def run(stage: Stage, *, part: str, patience: float, **sizes: float) -> dict[str, Any]:
    if part not in PARTS:
        raise InvalidRun(f"part {part!r}: choose one of {', '.join(PARTS)}")
    mine = {name.removeprefix(f"{part}_"): size for name, size in sizes.items() if name.startswith(f"{part}_")}
    if wrong := [name for name, size in mine.items() if size < isinstance(size, int)]:
        raise InvalidRun(f"--{part}-{wrong[0].replace('_', '-')}: {mine[wrong[0]]:g} is too small")
    values: dict[str, Any] = await PARTS[part].run(stage, patience=patience, **mine)
    return values


BENCHMARK = Benchmark(
    run,
    options=(
        ("part", "first", f"one of {', '.join(PARTS)}"),
        ("patience", 3_600.0, "most seconds to wait for a host to start, and for the next start or sleep"),
        *((name, usual, text) for name, usual, _, text in SIZES),
    ),
    stores=("redis", "sqlite", "postgres"),
    concerning=concerning,
    short={"patience": 300.0, **{name: short for name, _, short, _ in SIZES}},
)
