"""The number of calls to the store, as docs/adapters.md has it: more calls for a message are a defect."""

from __future__ import annotations

import pytest

from bench.engine import calls
from bench.support.stage import Stage

WANTED = {
    "consume": {"log.put": 1, "log.read": 1},
    "delay": {"lanes.add": 1, "lanes.claim": 2, "lanes.settle": 1},
    "retry": {"log.put": 1, "log.read": 1, "lanes.add": 1, "lanes.claim": 2, "lanes.settle": 1},
    "sorted": {"sorted.add": 1, "sorted.claim": 2, "sorted.settle": 1},
}


async def test_a_message_alone_costs_the_calls_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "CHECKPOINTED_S", 0.0)
    with Stage("memory", quiet=True) as stage:
        found = await calls.run(stage, alone=10, together=100)
    for job, wanted in WANTED.items():
        alone = {name.rpartition(" ")[2]: value for name, value in found.items() if name.startswith(f"{job} alone")}
        counted = {name: round(float(value.split()[0])) for name, value in alone.items()}
        assert {name: count for name, count in counted.items() if count} == wanted, alone
        together = [float(v.split()[0]) for n, v in found.items() if n.startswith(f"{job} together")]
        assert sum(together) < 1, found
