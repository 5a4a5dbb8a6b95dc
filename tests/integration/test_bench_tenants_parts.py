"""Each part of the benchmark of tenants runs to its end, with small sizes, on the embedded store."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

TIMEOUT_S = 300
FIELDS = {
    "first": ("first_start_p50_ms", "first_start_p99_ms"),
    "strangers": ("rss_ratio_after", "keys_left", "rows_left", "took_s"),
    "rows": ("start_s", "host_mb", "producer_mb", "idle_cpu_percent"),
    "awake": ("kb_a_topic", "idle_cpu_percent"),
    "plan": ("plan_s", "plan_mb", "plan_writes", "join_s", "join_mb", "join_writes", "join_hosts_changed"),
}
SIZES = {
    "first": ("--first-topics", "20", "--first-publishes", "2"),
    "strangers": ("--strangers-names", "30", "--strangers-batch", "10", "--strangers-at-once", "20"),
    "rows": ("--rows-topics", "60", "--rows-awake", "20", "--rows-published", "10"),
    "awake": ("--awake-topics", "60"),
    "plan": (),
}


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", "tenants", "--short", "--json", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def figures(part: str, words: Sequence[str]) -> dict[str, Any]:
    done = bench("--part", part, *words)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("part", FIELDS)
def test_a_part_measures_its_figures(part: str) -> None:
    found = figures(part, ["--store", "sqlite", *SIZES[part]])
    assert found["part"] == part
    for name in FIELDS[part]:
        assert isinstance(found[name], int | float), name
    if part == "first":
        assert found["messages"] == 2
        assert 0 < found["first_start_p50_ms"] <= found["first_start_p99_ms"]
    if part == "strangers":
        assert found["rss_ratio_after"] > 0.5
    if part == "rows":
        assert found["producer_mb"] > 1
