"""Resources under a backlog beside the optimum; with a flood, with failures, with tenants of different weights.

`--flood`: waits of an urgent type with and without a flood of another. `--failure`: a quarter of the resources fail and
return. `--tenants`: 200 tenants with weights from 1 to 10 on one resource.
"""

from __future__ import annotations

from typing import Any

from bench.scheduling import backlog
from bench.support.figures import Benchmark, Figure
from bench.support.stage import Stage


async def run(stage: Stage, *, resources: int, seconds: int) -> dict[str, Any]:
    return await backlog.run(stage, resources=resources, seconds=seconds)


BENCHMARK = Benchmark(
    run,
    options=(
        ("resources", 50, "resources"),
        ("seconds", 60, "seconds of watching"),
    ),
    figures=(Figure("utilisation", ">=", 0.98), Figure("overshoot", "==", 0)),
)
