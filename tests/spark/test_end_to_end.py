"""The whole way, by one command: a load is published, one host is killed, another joins, and the audit passes.

Real Valkey, PostgreSQL and ZooKeeper, hosts in processes of their own with a trail each, and Spark.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyarrow.parquet as pq
from typer.testing import CliRunner

import emq_servers as servers
from emq_cli.commands import app

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_load_through_a_kill_and_a_join_passes_the_audit(
    spark: SparkSession,
    zookeeper_server: servers.ZooKeeperServer,
    redis_url: str,
    postgres_url: str,
    tmp_path: Path,
) -> None:
    """The servers are asked for only to skip or fail, as every test, where one is missing."""
    kept, report = tmp_path / "kept", tmp_path / "trial.html"
    arguments = ["trial", "--duration", "10s", "--seed", "1", "--keep", kept, "--report", report, "--json"]
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 0, f"{result.output[-5000:]}\n{result.stderr[-2000:]}"
    found = json.loads(result.stdout)
    assert found["database"] == "postgresql"
    assert found["moved"] > 3
    assert (found["killed"], found["joined"]) == ("host-1", "host-3")
    load, audit = found["load"], found["audit"]
    assert load["published"] + load["merged"] == load["asked"] > 1_000
    assert (audit["ok"], audit["counts"]["unfinished"]) == (True, 0)
    assert "Every promise was kept" in report.read_text()
    trails = [pq.read_table(path, columns=["event"]) for path in kept.glob("trail/host-1-*.parquet")]
    started = sum(trail["event"].to_pylist().count("started") for trail in trails)
    assert started > 0, "nothing was in the killed host's hands: its death proves nothing"
    assert {path.name for path in kept.iterdir()} >= {"trail", "ledger", "host-1.log", "host-2.log", "host-3.log"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--hosts", "1"], "hosts"),
        (["nowhere.toml"], "nowhere.toml"),
        (["--keep", "{full}"], "is not empty; name a new one"),
        (["--report", "{full}/nowhere/trial.html"], "there is no such directory; make it"),
    ],
)
def test_a_trial_that_cannot_be_made_says_why_in_a_line(
    spark: SparkSession, tmp_path: Path, arguments: list[str], said: str
) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(app, ["trial", *(a.format(full=tmp_path) for a in arguments)])
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.stderr
