"""The costs of tenants: of a first publish, of names that sleep, of rows, of awake topics, and of their plan.

Each run measures one part, on a store and a catalog that are empty before: `--part first`, `strangers`, `rows`,
`awake` or `plan`. The options of a part begin with its name.
"""

from __future__ import annotations

from typing import Any

from bench.support.figures import Benchmark
from bench.support.parts import Parts
from bench.support.stage import Stage
from bench.tenants import awake, first, plan, rows, strangers

PARTS = Parts("part", {"first": first, "strangers": strangers, "rows": rows, "awake": awake, "plan": plan})


async def run(stage: Stage, *, part: str, patience: float, **sizes: float) -> dict[str, Any]:
    module, mine = PARTS.chosen(part, sizes)
    values: dict[str, Any] = await module.run(stage, patience=patience, **mine)
    return values


BENCHMARK = Benchmark(
    run,
    options=(
        *PARTS.options,
        ("patience", 3_600.0, "most seconds to wait for a host to start, and for the next start or sleep"),
    ),
    stores=("redis", "sqlite", "postgres"),
    concerning=PARTS.concerning,
    short={"patience": 300.0, **PARTS.short},
)
