"""The promises hold in many clusters to which everything happens that can. More: `make simulate SEEDS=5000`."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import pathlib
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from support.simulation.budgeted import RESIZE_BUDGET
from support.simulation.run import simulate
from support.simulation.schedule import (
    AGAIN,
    CLEAN,
    CROWD,
    CROWD_UNCLEAN,
    DATABASE,
    FEW,
    MANY,
    MORE,
    SHARDS,
    SILENT,
    UNCLEAN,
    UNFORESEEN,
    schedule,
)
from support.simulation.varied import GROWTH_LOST, PAUSE, RESIZE_KEYED, WAKES

SEEDS = int(os.environ.get("EMQ_SIMULATED_SEEDS", "160"))
"""So many that each kind of fault happens in two at least."""
CHUNK = 10
CHUNKS = [range(first, min(first + CHUNK, SEEDS)) for first in range(0, SEEDS, CHUNK)]
"""Workers share the seeds in chunks of so many."""

WORKER = os.environ.get("PYTEST_XDIST_WORKER")
JOBS = 1 if WORKER else os.cpu_count() or 1
LONGEST_S = 1200
"""Many times what it takes, for a machine that is busy with something else."""

CONSEQUENCES = (
    *("refused settle", "refused checkpoint", "redelivered", "moves", "dead", "starts", "rewound"),
    *("publish refused", "tried", "hang", "unsettled", "unforeseen error"),
    *("merged", "occurrences", "occurrences missed", "schedule created", "schedule taken back"),
)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A directory of this run that all its workers use."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if WORKER else base


@pytest.fixture(scope="module")
def happened(kept: pathlib.Path) -> Counter[str]:
    """What happened in all seeds together."""
    return sum((Counter(_result(seeds, kept)["happened"]) for seeds in CHUNKS), Counter())


def _result(seeds: range, kept: pathlib.Path) -> dict[str, Any]:
    """Of a chunk, as `--json` prints it; whoever asks first simulates it, and whoever asks meanwhile waits."""
    found = kept / f"seeds-{seeds.start}.json"
    with found.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.exists():
            found.write_text(_simulated(seeds))
    result: dict[str, Any] = json.loads(found.read_text())
    return result


def _simulated(seeds: range) -> str:
    """Run by a process of its own: there the order of sets is the same each time."""
    command = [sys.executable, "-m", "support.simulation", "--json", "--jobs", str(JOBS)]
    command += ["--first", str(seeds.start), "--seeds", str(len(seeds))]
    tests = pathlib.Path(__file__).parents[1]
    env = {**os.environ, "PYTHONHASHSEED": "0"}  # else the command sets it, and begins once more
    done = subprocess.run(command, cwd=tests, env=env, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    assert done.stdout, done.stderr
    return done.stdout


@pytest.mark.parametrize("seeds", CHUNKS, ids=[f"{seeds.start}-{seeds.stop - 1}" for seeds in CHUNKS])
def test_every_promise_holds_for_every_seed(seeds: range, kept: pathlib.Path) -> None:
    result = _result(seeds, kept)
    assert result["seeds"] == len(seeds)
    failures = result["failures"]
    assert not failures, f"{len(failures)} of {len(seeds)} seeds fail; the first of them:\n{failures[0][1]}"


EVENTS = (
    *(*CLEAN, *UNCLEAN, *SILENT, *SHARDS, *AGAIN, *WAKES, PAUSE, RESIZE_KEYED, GROWTH_LOST),
    *(*MORE, *CROWD, *CROWD_UNCLEAN, *DATABASE, *UNFORESEEN, RESIZE_BUDGET),
)


@pytest.mark.parametrize("what", sorted({*EVENTS, *CONSEQUENCES}))
def test_each_kind_of_fault_happened_and_had_consequences(what: str, happened: Counter[str]) -> None:
    """A run in which nothing happened proves nothing."""
    assert happened[what] > 0


def test_a_seed_stands_for_the_same_history_each_time() -> None:
    seed = next(seed for seed in range(100) if not schedule(seed).clean)
    first, again = simulate(seed), simulate(seed)
    assert first.evidence.history == again.evidence.history
    assert len(first.evidence.starts) > 100


def test_a_seed_stands_for_the_same_history_in_a_process_that_logs_nothing() -> None:
    """Nor do the seeds of such a process influence each other: none of them turns its log on again."""
    seed = next(seed for seed in range(100) if not schedule(seed).clean)
    logging.disable(logging.CRITICAL)
    try:
        silent = simulate(seed)
        assert logging.root.manager.disable == logging.CRITICAL
    finally:
        logging.disable(logging.NOTSET)
    assert silent.evidence.history == simulate(seed).evidence.history


def test_some_seeds_have_many_hosts() -> None:
    crowded = [plan for seed in range(SEEDS) if (plan := schedule(seed)).most_hosts > FEW]
    assert 1 <= len(crowded) <= SEEDS / 15
    assert all(12 <= plan.hosts <= MANY for plan in crowded)
    assert any("roll" in {event.what for event in plan.events} for plan in crowded)
