"""The promises hold over real scripts and statements, too: a few seeds on each; more: `make simulate STORE=redis`."""

from __future__ import annotations

import asyncio
import json
import pathlib
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from support.simulation import planting
from support.simulation.keepers import LEFT_OUT, at_once, keeping
from support.simulation.planting import Fault
from support.simulation.run import simulate
from support.simulation.schedule import schedule

FIRST, SEEDS = 177, 2
"""Seeds to which much happens, the loss of all or of the last writes too."""

LONGEST_S = 300
"""Many times what it takes, for a machine that is busy with something else."""

Plant = Callable[[Fault], AbstractContextManager[None]]

PLANTED: dict[str, tuple[str, Plant, Fault, str]] = {
    "a put in Lua that wakes nobody": (
        "redis",
        planting.in_lua,
        Fault("put", "redis.call('PUBLISH', channel, table.concat(woken[channel], '\\n'))", ""),
        "delay",
    ),
    "a recovery in Lua that leaves what other epochs have claimed": (
        "redis",
        planting.in_lua,
        Fault("lane_recover", "if tonumber(claimed_under) < epoch or", "if"),
        "L",
    ),
    "a recovery in SQL that leaves what other epochs have claimed": (
        "sqlite",
        planting.in_sql,
        Fault("entries_recover", "e.epoch < r.value ->> 1 OR", ""),
        "L",
    ),
    "wake-ups in SQL of which only one is taken": (
        "sqlite",
        planting.in_sql,
        Fault("woken_take", "RETURNING name", "RETURNING name LIMIT 1"),
        "delay",
    ),
}
"""Store, how a fault is planted there, the fault, and the promise that it breaks."""

PLANTED_SEEDS = range(1, 4)


@pytest.fixture(params=("redis", "sqlite"))
def store(request: pytest.FixtureRequest) -> str:
    """The name of a real store, which can be had here."""
    name: str = request.param
    if name == "redis":
        request.getfixturevalue("redis_server")
    return name


def test_every_promise_holds_for_every_seed(store: str) -> None:
    command = [sys.executable, "-m", "support.simulation", "--store", store, "--json", "--jobs", "1"]
    tests = pathlib.Path(__file__).parents[1]
    done = subprocess.run(
        [*command, "--first", str(FIRST), "--seeds", str(SEEDS)],
        cwd=tests,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert not found["failures"], found["failures"][0][1]
    assert found["happened"]["tried"] == SEEDS
    losses = {"store_shorter", "store_empty"}
    assert losses & found["happened"].keys() == losses - LEFT_OUT[store], "choose other seeds"


def test_a_seed_stands_for_the_same_history_on_every_server(store: str) -> None:
    seed = next(seed for seed in range(100) if not schedule(seed).clean)
    histories = []
    for _ in range(2):
        with keeping(store) as keep:
            histories.append(simulate(seed, keep).evidence.history)
    assert histories[0] == histories[1]
    assert len(histories[0]) > 1_000


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str, request: pytest.FixtureRequest) -> None:
    """So the scripts and statements that are simulated are the real ones."""
    store, plant, fault, promise = PLANTED[name]
    if store == "redis":
        request.getfixturevalue("redis_server")
    with plant(fault), keeping(store) as keep:
        assert any(
            promise in {violation.promise for violation in simulate(seed, keep).violations} for seed in PLANTED_SEEDS
        )


def test_a_call_that_waits_is_refused() -> None:
    """Virtual time would go on in the middle of it."""
    with pytest.raises(RuntimeError, match="waits for something"):
        at_once(asyncio.sleep(0))
