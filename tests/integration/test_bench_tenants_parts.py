"""Each part of the benchmark of tenants runs to its end, with small sizes, on the embedded store."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.cluster.crew import InvalidRun
from bench.support.stage import Stage
from bench.tenants import starts
from bench.tenants.starts import StartFile
from bench.tenants.waits import Waits
from bench.tenants.watched_host import watched

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


def test_a_store_and_a_catalog_that_are_there_are_used_once(tmp_path: Path) -> None:
    words = ["--store", f"sqlite:///{tmp_path}/store.db", "--database", f"sqlite:///{tmp_path}/catalog.db"]
    assert figures("awake", [*words, "--awake-topics", "10"])["store"] == "sqlite"
    again = bench("--part", "awake", *words)
    assert again.returncode == 1
    assert "hold nothing" in again.stderr


@pytest.fixture
def host() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


async def test_a_wait_ends_with_the_host_or_with_the_patience(tmp_path: Path, host: subprocess.Popen[bytes]) -> None:
    path = tmp_path / "starts"
    with pytest.raises(InvalidRun, match=r"waited 0 s in vain until 1 message started"):
        await starts.reached(path, 1, Waits(host.pid, 0.0))
    StartFile(path).add(1)
    await starts.reached(path, 1, Waits(host.pid, 0.0))
    host.kill()
    with pytest.raises(InvalidRun, match="the host ended before 2 messages started"):
        await starts.reached(path, 2, Waits(host.pid, 300.0))


async def failing_elsewhere(stage: Stage) -> None:
    with watched(stage, TIMEOUT_S) as host:
        with contextlib.suppress(InvalidRun):
            await host.start()
        raise InvalidRun("the host ended before it was ready")


async def test_a_host_that_ends_by_itself_says_why(tmp_path: Path) -> None:
    with Stage("sqlite", quiet=True) as stage:
        stage.url = f"sqlite:///{tmp_path}/missing/store.db"
        with pytest.raises(InvalidRun, match=r"ended with status 1:(?s:.)*missing"):
            await failing_elsewhere(stage)
