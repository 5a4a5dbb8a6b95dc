"""What `deploy/` holds works: systemd, Docker and Kubernetes take it, and its scripts do what they say."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE = DEPLOY / "compose/compose.yaml"
UNITS = ("emq.service", "emq-host@.service")


@pytest.mark.parametrize("name", UNITS)
def test_systemd_takes_the_units(name: str, tmp_path: Path) -> None:
    if (analyze := shutil.which("systemd-analyze")) is None:
        pytest.skip("systemd-analyze is not installed")
    copy = tmp_path / name.replace("@", "@1")
    # The program is not installed where this runs.
    copy.write_text((DEPLOY / name).read_text().replace("/opt/emq/bin/emq", "/bin/true"))
    done = subprocess.run([analyze, "verify", str(copy)], capture_output=True, text=True, timeout=60, check=False)
    if "Failed to" in done.stderr and copy.name not in done.stderr:
        pytest.skip(f"systemd-analyze does not work here: {done.stderr.splitlines()[0]}")
    assert copy.name not in done.stderr
    assert done.returncode == 0, done.stderr


def test_docker_takes_the_compose_file() -> None:
    docker = shutil.which("docker")
    asked = [docker or "docker", "compose", "version"]
    if docker is None or subprocess.run(asked, capture_output=True, timeout=60, check=False).returncode != 0:
        pytest.skip("docker compose is not installed")
    example = {"POSTGRES_PASSWORD": "a", "VALKEY_PASSWORD": "b", "ZOOKEEPER_PASSWORD": "c"}
    done = subprocess.run(
        [docker, "compose", "--file", str(COMPOSE), "config", "--quiet"],
        env={**os.environ, **example},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


VALKEY_CLI = """#!/bin/sh
echo "$*" >>"$CALLS"
case "$*" in
    *--cluster*) touch "$CALLS.made" ;;
    *) if [ -e "$CALLS.made" ]; then echo "cluster_state:ok"; echo "cluster_known_nodes:6"
       else echo "cluster_state:fail"; echo "cluster_known_nodes:1"; fi ;;
esac
"""


def test_the_cluster_is_made_once(tmp_path: Path) -> None:
    calls, stand_in = tmp_path / "calls", tmp_path / "valkey-cli"
    stand_in.write_text(VALKEY_CLI)
    stand_in.chmod(0o755)
    nodes = ["n1:1", "n2:2"]
    for _ in range(2):
        subprocess.run(
            ["sh", str(DEPLOY / "compose/create-cluster.sh"), *nodes],
            env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "CALLS": str(calls)},
            timeout=20,
            check=True,
            capture_output=True,
        )
    made = [line for line in calls.read_text().splitlines() if "--cluster create" in line]
    assert made == ["--cluster create n1:1 n2:2 --cluster-replicas 1 --cluster-yes"]


@pytest.mark.parametrize("environment", ["online", "sandbox"])
def test_kustomize_makes_each_environment(environment: str) -> None:
    if (kubectl := shutil.which("kubectl")) is None:
        pytest.skip("kubectl is not installed")
    done = subprocess.run(
        [kubectl, "kustomize", str(DEPLOY / "kubernetes" / environment)],
        env={**os.environ, "KUBECONFIG": os.devnull},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    kinds = {document["kind"]: document for document in yaml.safe_load_all(done.stdout)}
    assert kinds["ConfigMap"]["data"]["EMQ_ENVIRONMENT"] == environment
    assert {document["metadata"]["namespace"] for document in kinds.values()} == {f"emq-{environment}"}
    [container] = kinds["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    assert container["envFrom"][0]["configMapRef"]["name"] == kinds["ConfigMap"]["metadata"]["name"]


def probe(hosts: list[dict[str, Any]] | None, *arguments: str) -> int:
    done = subprocess.run(
        [sys.executable, str(DEPLOY / "emq-ready"), *arguments],
        input="" if hosts is None else json.dumps({"hosts": hosts}),
        env={**os.environ, "EMQ_HOST_NAME": "pod-1"},
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return done.returncode


def seen(name: str, live: bool = True, store_unreachable: str | None = None) -> dict[str, Any]:
    return {"host": name, "live": live, "store_unreachable": store_unreachable}


PODS = [seen("pod-1-0"), seen("pod-1-1")]
ONE_SILENT = [seen("pod-1-0"), seen("pod-1-1", live=False)]


@pytest.mark.parametrize(
    ("hosts", "processes", "status"),
    [
        ([seen("pod-2"), seen("pod-1")], [], 0),
        (PODS, ["2"], 0),
        (ONE_SILENT, ["2"], 1),
        (None, [], 1),
        ([], [], 1),
        ([seen("pod-2")], [], 1),
        ([seen("pod-11")], [], 1),
        ([seen("pod-1", live=False)], [], 1),
        ([seen("pod-1", True, "no answer")], [], 1),
    ],
    ids=["live", "all", "one silent", "no statistics", "nobody", "another", "longer name", "not live", "no store"],
)
def test_the_probe_says_ready_when_every_process_of_this_host_is_live_and_reaches_its_store(
    hosts: list[dict[str, Any]] | None, processes: list[str], status: int
) -> None:
    assert probe(hosts, *processes) == status
