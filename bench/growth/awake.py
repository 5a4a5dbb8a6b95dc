"""What a message costs as the number of queues grows that have messages: `host`, once for each number."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from bench.cluster.crew import InvalidRun
from bench.support.stage import Stage
from emq.runtime import plurals

QUEUES = (300, 3_000, 60_000, 300_000)
FEW, MANY = 3_000, 300_000
"""The numbers of queues whose costs `awake_cost_ratio` compares."""

OPTIONS = (("messages", 6_000_000, 30_000, "backlog in all, shared out evenly"), ("most", MANY, FEW, "most queues"))
STORES = ("redis",)


async def run(stage: Stage, *, messages: int, most: int) -> dict[str, Any]:
    """Each run has a server and a process of its own, so that none meets what another left in memory."""
    values: dict[str, Any] = {}
    for queues in [queues for queues in QUEUES if queues <= most]:
        stage.say(f"{plurals.count(queues, 'queue')}, {plurals.count(messages, 'message')}")
        found = await _host(queues, messages)
        values |= {
            f"awake_{queues}_per_s": found["consumed_per_s"],
            f"awake_{queues}_cpu_us": found["host_cpu_us_per_message"],
            f"awake_{queues}_server_cpu_us": found["server_cpu_us_per_message"],
            f"awake_{queues}_start_s": found["start_s"],
            f"awake_{queues}_mb": found["rss_mb"],
        }
    if most >= MANY:
        values["awake_cost_ratio"] = values[f"awake_{MANY}_cpu_us"] / values[f"awake_{FEW}_cpu_us"]
    return values


async def _host(queues: int, messages: int) -> dict[str, Any]:
    words = ("-m", "bench", "host", "--queues", str(queues), "--messages", str(messages), "--json")
    process = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    if process.returncode:
        raise InvalidRun(f"bench host --queues {queues} ended with {process.returncode}")
    found: dict[str, Any] = json.loads(out)
    return found
