"""How the cost of a message grows: with its payload.

Each run measures one part, on a store and a catalog that are empty before: `--only payload`. The options of a part
begin with its name.
"""

from __future__ import annotations

from typing import Any

from bench.growth import payload
from bench.support.figures import Benchmark
from bench.support.stage import Stage


async def run(stage: Stage, *, only: str, payload_megabytes: int) -> dict[str, Any]:
    return await payload.run(stage, megabytes=payload_megabytes)


BENCHMARK = Benchmark(
    run,
    options=(("only", "payload", "one of payload"), ("payload-megabytes", 200, "bytes of each size, in millions")),
    stores=("redis",),
    short={"payload_megabytes": 20},
)
