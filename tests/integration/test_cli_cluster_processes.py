"""A cluster of real host processes over a real ZooKeeper, as an operator at a terminal meets it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import emq_servers as servers
from support import emq_shell
from support.emq_processes import PATIENCE_S, Shell, line_with, until

SESSION_TIMEOUT_S = 3.0
STARTS_S = 40.0
"""For several processes to start and meet, on a machine that does other things, too."""


@pytest.fixture
def shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, redis_url: str, zookeeper_server: servers.ZooKeeperServer
) -> Iterator[Shell]:
    """Commands on a store that can be shared, and a cluster of their own."""
    emq_shell.enter(tmp_path, monkeypatch)
    monkeypatch.setenv("EMQ_STORE", redis_url)
    monkeypatch.setenv("EMQ_DATABASE", "sqlite:///catalog.db")
    monkeypatch.setenv("EMQ_CLUSTER", f"{zookeeper_server.url}/cli/{uuid.uuid4().hex}")
    monkeypatch.setenv("EMQ_SESSION_TIMEOUT_S", str(SESSION_TIMEOUT_S))
    monkeypatch.setenv("EMQ_HOST_NAME", "h")
    Path("mine.py").write_text("import emq\napp = emq.App()\napp.handler('cli-cluster-*')(lambda m: None)\n")
    made = Shell()
    yield made
    made.close()


def hosts(shell: Shell) -> dict[str, dict[str, Any]]:
    return {host["host"]: host for host in shell.json("hosts")["hosts"]}


def wait_for_groups(shell: Shell, groups: int, members: int) -> None:
    def shared() -> bool:
        found = [h for h in hosts(shell).values() if h["state"] == "member" and h["groups"] and not h["waiting"]]
        return len(found) == members and sum(h["groups"] for h in found) == groups

    deadline = time.monotonic() + STARTS_S
    while not shared():
        assert time.monotonic() < deadline, hosts(shell)
        time.sleep(0.2)


def children(parent: subprocess.Popen[str]) -> list[int]:
    return [child.pid for child in psutil.Process(parent.pid).children()]


def test_processes_of_one_host_are_members_that_are_seen_ordered_and_restarted(shell: Shell) -> None:
    topic = f"cli-cluster-{uuid.uuid4().hex[:8]}"
    shell.here(f"topic create {topic} --qps 400")
    parent = shell.start("host --processes 2 --app mine")
    assert "the members h-0 to h-1" in line_with(parent, "starting")
    wait_for_groups(shell, 8, 2)
    found = hosts(shell)
    assert found.keys() == {"h-0", "h-1"}
    assert {host["pid"] for host in found.values()} == set(children(parent))
    assert sum(host["leads"] for host in found.values()) == 1

    done = shell.json("drain h-0 --timeout 30")
    assert done["moved_to"] == {"h-1": found["h-0"]["groups"]}
    assert hosts(shell)["h-0"]["state"] == "drained"
    assert shell.json(f"plan {topic}/3")["host"] == "h-1"
    shell.here(f"publish {topic} " + "x " * 200)
    until(lambda: sum(shell.json(f"lag {topic}")[0]["ready"].values()) == 0)
    assert sum(shell.json("drain h-0 --undo --timeout 30")["moved_to"].values()) > 0

    killed = hosts(shell)["h-1"]["pid"]
    os.kill(killed, signal.SIGKILL)
    assert "starting it again" in line_with(parent, "status -9")
    assert "when its old session has ended" in line_with(parent, "member again")
    until(lambda: hosts(shell).get("h-1", {}).get("pid") not in (killed, None))
    wait_for_groups(shell, 8, 2)

    parent.send_signal(signal.SIGTERM)
    assert parent.wait(PATIENCE_S) == 0
    assert all(host["state"] == "gone" for host in hosts(shell).values())
    shell.here(f"topic delete {topic} --yes --force")


def test_a_host_whose_name_is_taken_says_by_whom_and_ends(shell: Shell) -> None:
    first = shell.start("host --app mine")
    until(lambda: hosts(shell).keys() == {"h"})
    second = shell.start("host --app mine")
    assert "still a member" in line_with(second, "a host named h")
    assert f"process {first.pid} on" in line_with(second, "is a member of this cluster already")
    assert second.wait(PATIENCE_S) == 1
    assert hosts(shell)["h"]["pid"] == first.pid


def test_a_host_whose_ensemble_does_not_answer_says_so_starts_nothing_and_stops_at_once(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"cli-cluster-{uuid.uuid4().hex[:8]}"
    shell.here(f"topic create {topic} --qps 400")
    shell.here(f"publish {topic} " + "x " * 20)
    port = servers.free_port()
    monkeypatch.setenv("EMQ_CLUSTER", f"zookeeper://127.0.0.1:{port}")
    alone, several = shell.start("host --app mine"), shell.start("host --app mine --processes 2")
    for process in (alone, several):
        assert f"127.0.0.1:{port}" in line_with(process, "no ZooKeeper server can be used, trying again")
        asked = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
        assert time.monotonic() - asked < 8.0
    assert sum(shell.json(f"lag {topic}")[0]["ready"].values()) == 20
    shell.here(f"topic delete {topic} --yes --force")
