"""The whole way: a load is published, one host is killed, another joins, and the audit finds every promise kept.

Real Valkey, PostgreSQL and ZooKeeper, hosts in processes of their own with a trail each, and the two commands.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from support import cluster, cluster_receipts
from support.cluster import Cluster, Place
from typer.testing import CliRunner, Result

from emq import servers
from emq.cli.commands import app

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLAN = """
duration_s = 15
[[tenants]]
name = "shop-{n}"
count = 3
qps = 90.0
zipf = 0.7
keys = 40
priorities = { high = 0.2, mid = 0.3, low = 0.5 }
delays = [{ share = 0.1, between_s = [0.5, 4.0] }]
bursts = [{ from_s = 5, for_s = 2, factor = 4.0, share = 0.4 }]
topic = { group_qps = 10.0, headroom = 2.0 }
[[tenants]]
name = "prices"
qps = 20.0
duplicates = 0.5
topic = { kind = "range_merge", group_qps = 10.0, qps = 40.0, options = { time_range_ms = 500, ordering = "key" } }
"""


@pytest.fixture
def place(
    zookeeper_server: servers.ZooKeeperServer, redis_url: str, postgres_url: str, tmp_path: Path
) -> Iterator[Place]:
    with cluster.place_on(zookeeper_server, redis_url, tmp_path, postgres_url=postgres_url) as place:  # type: ignore[arg-type]
        yield place


async def emq(place: Place, *arguments: object) -> Result:
    """Run a command on the same data, while everything else goes on."""
    line = [*map(str, arguments), "--store", place.store, "--database", place.database, "--json"]
    return await asyncio.to_thread(CliRunner().invoke, app, line)


def told(result: Result) -> Any:
    assert result.exit_code == 0, result.output[-5000:]
    return json.loads(result.stdout)


async def test_a_load_through_a_kill_and_a_join_passes_the_audit(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    trail, ledger, report = tmp_path / "trail", tmp_path / "ledger", tmp_path / "audit.html"
    (tmp_path / "plan.toml").write_text(PLAN)
    async with Cluster(place, tmp_path, trail=str(trail)) as hosts:
        first, second = hosts.start(), hosts.start()
        load = asyncio.create_task(emq(place, "load", tmp_path / "plan.toml", "--ledger", ledger, "--seed", 1))
        await hosts.until_working(first, second)
        hosts.kill(first)
        killed_us = cluster.now_us()
        third = hosts.start()
        await hosts.until_working(second, third, since_us=killed_us)
        found = told(await load)
        assert found["published"] + found["merged"] == found["asked"] > 1_500
        await all_finished(hosts)
        for host in (second, third):
            assert await host.stop() == 0
    moved = [group for group, n in cluster_receipts.moves(hosts.receipts(), 0, 1 << 62) if n]
    assert moved, "nothing was taken over: the kill proves nothing"
    audit = told(await emq(place, "audit", trail, "--ledger", ledger, "--crashed", first.name, "--report", report))
    assert audit["ok"] is True
    assert audit["counts"]["published"] > 1_000
    assert "Every promise was kept" in report.read_text()


async def all_finished(hosts: Cluster) -> None:
    """Return when nothing waits any more, and all of it is checkpointed."""
    topics = await hosts.app.catalog.list()
    deadline = asyncio.get_running_loop().time() + cluster.PATIENCE_S
    while True:
        lags = await hosts.app.admin.lag(topics)
        slots = await hosts.app.admin.slot_lag(topics)
        left = sum(lag.unfinished for lag in lags) + sum(s.ready + s.delayed + s.claimed for s in slots)
        if not left:
            return
        assert asyncio.get_running_loop().time() < deadline, f"{left} messages are left\n{hosts.tails()}"
        await asyncio.sleep(0.2)
