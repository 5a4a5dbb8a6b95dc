"""How the cost of a message grows: with its payload, with queues that have messages, with handlers, with a backlog.

Each run measures one part, on a store and a catalog that are empty before: `--only payload`, `awake`, `handlers` or
`backlog`. The options of a part begin with its name.
"""

from __future__ import annotations

from typing import Any

from bench.cluster.crew import InvalidRun
from bench.growth import awake, backlog, handlers, payload
from bench.support.figures import Benchmark, Figure
from bench.support.stage import Stage

PARTS = {"payload": payload, "awake": awake, "handlers": handlers, "backlog": backlog}
SIZES = tuple((f"{part}-{name}", *others) for part, module in PARTS.items() for name, *others in module.OPTIONS)


def concerning(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options without the sizes of other parts."""
    others = tuple(f"{part}_" for part in PARTS if part != options["only"])
    return {name: value for name, value in options.items() if not name.startswith(others)}


async def run(stage: Stage, *, only: str, **sizes: float) -> dict[str, Any]:
    if only not in PARTS:
        raise InvalidRun(f"part {only!r}: choose one of {', '.join(PARTS)}")
    if stage.store not in PARTS[only].STORES:
        raise InvalidRun(f"part {only!r} runs on {', '.join(PARTS[only].STORES)}, not on {stage.store!r}")
    mine = {name.removeprefix(f"{only}_"): size for name, size in sizes.items() if name.startswith(f"{only}_")}
    if wrong := [name for name, size in mine.items() if size <= 0]:
        raise InvalidRun(f"--{only}-{wrong[0].replace('_', '-')}: {mine[wrong[0]]:g} is too small")
    values: dict[str, Any] = await PARTS[only].run(stage, **mine)
    return values


BENCHMARK = Benchmark(
    run,
    options=(
        ("only", "payload", f"one of {', '.join(PARTS)}"),
        *((name, usual, text) for name, usual, _, text in SIZES),
    ),
    figures=(
        Figure("payload_1mb_put_ratio", ">=", 0.8),
        Figure("payload_1mb_get_ratio", ">=", 0.8),
        Figure("payload_stall_ms", "<=", 20),
        Figure("awake_cost_ratio", "<=", 1.5),
    ),
    concerning=concerning,
    short={name: short for name, _, short, _ in SIZES},
)
