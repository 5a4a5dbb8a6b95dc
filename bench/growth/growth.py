"""How the cost of a message grows: with its payload, with queues that have messages, with handlers, with a backlog.

Each run measures one part, on a store and a catalog that are empty before: `--only payload`, `awake`, `handlers`,
`backlog`, `steady` or `model`. The options of a part begin with its name.
"""

from __future__ import annotations

from typing import Any

from bench.cluster.crew import InvalidRun
from bench.growth import awake, backlog, handlers, model, payload, steady
from bench.support.figures import Benchmark, Figure
from bench.support.parts import Parts
from bench.support.stage import Stage

PARTS = Parts(
    "only",
    {"payload": payload, "awake": awake, "handlers": handlers, "backlog": backlog, "steady": steady, "model": model},
)


async def run(stage: Stage, *, only: str, **sizes: float) -> dict[str, Any]:
    module, mine = PARTS.chosen(only, sizes)
    if stage.store not in module.STORES:
        raise InvalidRun(f"part {only!r} runs on {', '.join(module.STORES)}, not on {stage.store!r}")
    values: dict[str, Any] = await module.run(stage, **mine)
    return values


BENCHMARK = Benchmark(
    run,
    options=PARTS.options,
    figures=(
        Figure("payload_1mb_put_ratio", ">=", 0.8),
        Figure("payload_1mb_get_ratio", ">=", 0.8),
        Figure("payload_stall_ms", "<=", 20),
        Figure("awake_cost_ratio", "<=", 1.5),
        Figure("model_worst", "<=", 1.25),
    ),
    concerning=PARTS.concerning,
    short=PARTS.short,
)
