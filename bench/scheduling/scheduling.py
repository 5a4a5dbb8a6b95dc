"""Resources under a backlog beside the optimum; with a flood, with failures, with tenants of different weights.

`--flood`: waits of an urgent type with and without a flood of another. `--failure`: a quarter of the resources fail and
return. `--tenants`: 200 tenants with weights from 1 to 10 on one resource. `--costs`: tenants whose tasks cost 1 to
3,000 units. `--windows`: chats beside a batch under limits of a minute and of an hour. `--many`: the first start while
tasks of `--many-tenants` tenants wait. `--starts`: the CPU of a start and of a change, with up to 10,000 resources, on
a virtual clock.
"""

from __future__ import annotations

from typing import Any

from bench.scheduling import backlog, costs, failure, flood, many, starts, tenants, windows
from bench.support.figures import Benchmark, Figure
from bench.support.stage import Stage

FLOODED = 10
FAILURE_S = 20.0
TENANTS, TENANTS_RATE, TENANTS_S = 200, 1_000.0, 10
COSTS_S = 30
WINDOWS_S = 190
MANY_S = 20


async def run(stage: Stage, *, resources: int, seconds: int, rounds: int, **chosen: Any) -> dict[str, Any]:
    if chosen["flood"]:
        return await flood.run(stage, resources=FLOODED, seconds=seconds / 2, rounds=rounds)
    if chosen["failure"]:
        return await failure.run(stage, resources=resources, seconds=FAILURE_S)
    if chosen["tenants"]:
        return await tenants.run(stage, tenants=TENANTS, rate=TENANTS_RATE, seconds=TENANTS_S)
    if chosen["costs"]:
        return await costs.run(stage, seconds=COSTS_S)
    if chosen["windows"]:
        return await windows.run(stage, seconds=WINDOWS_S)
    if chosen["starts"]:
        return await starts.run(stage)
    if chosen["many"]:
        sizes = {"tenants": chosen["many_tenants"], "tasks": chosen["many_tasks"]}
        return await many.run(stage, **sizes, seconds=MANY_S)
    return await backlog.run(stage, resources=resources, seconds=seconds)


BENCHMARK = Benchmark(
    run,
    options=(
        ("resources", 50, "resources, under a backlog and with failures"),
        ("seconds", 60, "seconds of watching under a backlog; with --flood, of each round"),
        ("rounds", 3, "with --flood: rounds, each with a half without and a half with the flood"),
        ("flood", False, "verification codes beside a flood of marketing"),
        ("failure", False, "a quarter of the resources fail and return"),
        ("tenants", False, "tenants of different weights on one resource"),
        ("costs", False, "tenants of different weights whose tasks cost 1 to 3,000 units"),
        ("windows", False, "chats beside a batch under limits of a minute and of an hour"),
        ("starts", False, "the CPU of a start and of a change, by the number of resources"),
        ("many", False, "the first start while tasks of very many tenants wait"),
        ("many-tenants", 100_000, "with --many: tenants"),
        ("many-tasks", 1_000_000, "with --many: tasks of all tenants together"),
    ),
    figures=(
        Figure("utilisation", ">=", 0.98),
        Figure("overshoot", "==", 0),
        Figure("p99_wait_ratio", "<=", 1.2),
        Figure("unstarted", "==", 0),
        Figure("lost", "==", 0),
        Figure("done_twice", "==", 0),
        Figure("not_back", "==", 0),
        Figure("share_error", "<=", 0.02),
        Figure("quiet_p99_ratio", "<=", 1.2),
        Figure("use_percent", ">=", 97.0),
        Figure("urgent_p99_s", "<", 1.0),
        Figure("urgent_first_s", "<", 1.0),
        Figure("first_start_s", "<=", 2.0),
        Figure("start_us_100", "<=", 150),
        Figure("start_us_10000", "<=", 250),
        Figure("change_ms", "<=", 20),
    ),
)
