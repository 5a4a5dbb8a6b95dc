"""What `deploy/` holds works: systemd and Docker take it, and its scripts do what they say."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE = DEPLOY / "compose/compose.yaml"
SYSTEMD = DEPLOY / "systemd"


@pytest.mark.parametrize("name", ["emq-tables.service", "emq-host@.service", "emq-api.service"])
def test_systemd_takes_the_units_with_their_common_part(name: str, tmp_path: Path) -> None:
    if (analyze := shutil.which("systemd-analyze")) is None:
        pytest.skip("systemd-analyze is not installed")
    for path in SYSTEMD.rglob("*"):
        copy = tmp_path / path.relative_to(SYSTEMD)
        if path.is_dir():
            copy.mkdir()
        else:
            # The program is not installed where this runs.
            copy.write_text(path.read_text().replace("/opt/emq/bin/emq", "/bin/true"))
    started = tmp_path / name.replace("@", "@1")
    (tmp_path / name).rename(started)
    done = verified(analyze, started)
    if "Failed to" in done.stderr and str(tmp_path) not in done.stderr:
        pytest.skip(f"systemd-analyze does not work here: {done.stderr.splitlines()[0]}")
    assert str(tmp_path) not in done.stderr
    assert done.returncode == 0, done.stderr
    common = tmp_path / "emq-.service.d/common.conf"
    common.write_text(common.read_text() + "ProtectHome=nonsense\n")
    assert "nonsense" in verified(analyze, started).stderr, "the unit has no common part"


def verified(analyze: str, unit: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SYSTEMD_UNIT_PATH": f"{unit.parent}:"}
    command = [analyze, "verify", str(unit)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_docker_takes_the_compose_file() -> None:
    docker = shutil.which("docker")
    asked = [docker or "docker", "compose", "version"]
    if docker is None or subprocess.run(asked, capture_output=True, timeout=60, check=False).returncode != 0:
        pytest.skip("docker compose is not installed")
    example = {"POSTGRES_PASSWORD": "a", "VALKEY_PASSWORD": "b", "ZOOKEEPER_PASSWORD": "c", "SECRET_KEY": "d"}
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


@pytest.mark.parametrize(
    ("directory", "settings", "said"),
    [
        (".", {}, "exists; name a new directory"),
        ("new", {"PYTHON": "no-such-python"}, "PYTHON=no-such-python is no Python 3.11 or newer"),
        ("new", {"CONSTRAINTS": "nowhere.txt"}, "no file of versions at nowhere.txt"),
    ],
)
def test_an_installation_that_cannot_be_made_is_refused_in_one_line_and_leaves_nothing(
    tmp_path: Path, directory: str, settings: dict[str, str], said: str
) -> None:
    done = subprocess.run(
        [str(DEPLOY / "image/install"), str(DEPLOY.parent), directory],
        cwd=tmp_path,
        env={**os.environ, "PYTHON": sys.executable, **settings},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("install: ")
    assert said in line
    assert not list(tmp_path.iterdir())
