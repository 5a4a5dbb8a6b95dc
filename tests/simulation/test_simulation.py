"""The promises hold in hundreds of clusters to which everything happens that can. More: `make simulate SEEDS=5000`."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
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
    schedule,
)
from support.simulation.varied import PAUSE, RESIZE_KEYED, WAKES

SEEDS = int(os.environ.get("EMQ_SIMULATED_SEEDS", "240"))
LONGEST_S = 1200
"""Many times what it takes, for a machine that is busy with something else."""

CONSEQUENCES = (
    *("refused settle", "refused checkpoint", "redelivered", "moves", "dead", "starts", "rewound"),
    *("publish refused", "tried", "hang", "unsettled"),
    *("merged", "occurrences", "occurrences missed", "schedule created", "schedule taken back"),
)


@pytest.fixture(scope="module")
def result() -> dict[str, object]:
    """Of all seeds, simulated by processes of their own: there the order of sets is the same each time."""
    command = [sys.executable, "-m", "support.simulation", "--json", "--seeds", str(SEEDS), "--jobs", "2"]
    tests = pathlib.Path(__file__).parents[1]
    done = subprocess.run(command, cwd=tests, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    assert done.stdout, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_every_promise_holds_for_every_seed(result: dict[str, list[tuple[int, str]]]) -> None:
    failures = result["failures"]
    assert not failures, f"{len(failures)} of {SEEDS} seeds fail; the first of them:\n{failures[0][1]}"


EVENTS = (
    *(*CLEAN, *UNCLEAN, *SILENT, *SHARDS, *AGAIN, *WAKES, PAUSE, RESIZE_KEYED),
    *(*MORE, *CROWD, *CROWD_UNCLEAN, *DATABASE),
)


@pytest.mark.parametrize("what", sorted({*EVENTS, *CONSEQUENCES}))
def test_each_kind_of_fault_happened_and_had_consequences(what: str, result: dict[str, dict[str, int]]) -> None:
    """A run in which nothing happened proves nothing."""
    assert result["happened"].get(what, 0) > 0


def test_a_seed_stands_for_the_same_history_each_time() -> None:
    seed = next(seed for seed in range(100) if not schedule(seed).clean)
    first, again = simulate(seed), simulate(seed)
    assert first.evidence.history == again.evidence.history
    assert len(first.evidence.starts) > 100


def test_some_seeds_have_many_hosts() -> None:
    crowded = [plan for seed in range(SEEDS) if (plan := schedule(seed)).most_hosts > FEW]
    assert 1 <= len(crowded) <= SEEDS / 15
    assert all(12 <= plan.hosts <= MANY for plan in crowded)
    assert any("roll" in {event.what for event in plan.events} for plan in crowded)
