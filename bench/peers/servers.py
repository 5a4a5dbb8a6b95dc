"""The peers' servers that EMQ itself has no use for: beanstalkd, NATS and RabbitMQ, unpacked below `PLACE/debian`."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import emq_servers
from bench.peers.field import PLACE
from emq_servers.server import LOOPBACK, Server, ServerMissing, free_port, run_as

DEBIAN = PLACE / "debian"

ERL = """#!/bin/sh
export ROOTDIR={root} BINDIR={binaries} EMU=beam PROGNAME=erl
exec "$BINDIR/erlexec" "$@"
"""


class Beanstalkd(Server):
    """beanstalkd, in memory alone."""

    name = "beanstalkd"

    @property
    def url(self) -> str:
        return f"beanstalk://{LOOPBACK}:{self.port}"

    def _command(self) -> list[str]:
        return [*run_as(None, self._death_signal), found("beanstalkd"), "-l", LOOPBACK, "-p", str(self.port)]

    def _greets(self, connection: socket.socket) -> bool:
        connection.sendall(b"list-tube-used\r\n")
        return connection.recv(64).startswith(b"USING")


class Nats(Server):
    """A NATS server with JetStream."""

    name = "nats"

    @property
    def url(self) -> str:
        return f"nats://{LOOPBACK}:{self.port}"

    def _command(self) -> list[str]:
        place = ["-a", LOOPBACK, "-p", str(self.port), "-js", "-sd", str(self.directory)]
        return [*run_as(None, self._death_signal), found("nats-server"), *place]

    def _greets(self, connection: socket.socket) -> bool:
        return connection.recv(64).startswith(b"INFO")


class RabbitMQ(Server):
    """A RabbitMQ server, with a port mapper of its own that ends with it."""

    name = "rabbitmq"

    def __init__(self, directory: Path | None, port: int | None) -> None:
        super().__init__(directory, port)
        self._mapper: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{LOOPBACK}:{self.port}/%2F"

    def _command(self) -> list[str]:
        erlang, broker = _erlang(), _broker()
        mapper_port = str(free_port())
        programs = self.directory / "bin"
        programs.mkdir(exist_ok=True)
        # Debian's own script names a place in the system.
        (programs / "erl").write_text(ERL.format(root=erlang, binaries=next(erlang.glob("erts-*/bin"))))
        (programs / "erl").chmod(0o755)
        self._environment = dict(
            os.environ,
            HOME=str(self.directory),
            PATH=f"{programs}:{os.environ['PATH']}",
            ERL_EPMD_PORT=mapper_port,
            ERL_EPMD_ADDRESS=LOOPBACK,
            RABBITMQ_NODENAME="peers@localhost",
            RABBITMQ_NODE_IP_ADDRESS=LOOPBACK,
            RABBITMQ_NODE_PORT=str(self.port),
            RABBITMQ_DIST_PORT=str(free_port()),
            RABBITMQ_HOME=str(broker),
            RABBITMQ_MNESIA_BASE=str(self.directory),
            RABBITMQ_LOG_BASE=str(self.directory),
            RABBITMQ_LOGS="-",
            RABBITMQ_CONF_ENV_FILE=str(self.directory / "none"),
            RABBITMQ_ENABLED_PLUGINS_FILE=str(self.directory / "plugins"),
            RABBITMQ_PLUGINS_DIR=str(broker / "plugins"),
        )
        self._environment.pop("NOTIFY_SOCKET", None)
        mapper = [*run_as(None, "KILL"), str(next(erlang.glob("erts-*/bin/epmd"))), "-port", mapper_port]
        self._mapper = subprocess.Popen(mapper, stdin=subprocess.DEVNULL, env=self._environment)
        return [*run_as(None, self._death_signal), str(broker / "sbin" / "rabbitmq-server")]

    def _spawn(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env=self._environment,
                start_new_session=True,
            )

    def _greets(self, connection: socket.socket) -> bool:
        connection.sendall(b"AMQP\x00\x00\x09\x01")
        return connection.recv(64).startswith(b"\x01\x00\x00")

    def stop(self) -> None:
        super().stop()
        if self._mapper is not None:
            self._mapper.kill()
            self._mapper.wait()
            self._mapper = None


def start(kind: str) -> Server:
    """Start a server of this kind, and wait until it replies.

    Raises:
        ServerMissing: it is not installed; `make bench-peers` does that.
        ServerFailed: it did not start.
    """
    if kind == "redis":
        return emq_servers.start_redis()
    made: Server = {"beanstalkd": Beanstalkd, "nats": Nats, "rabbitmq": RabbitMQ}[kind](None, None)
    return made.started()


def missing(kind: str) -> str:
    """Return why no server of this kind can start; empty if one can."""
    try:
        if kind == "rabbitmq":
            _erlang(), _broker()
        elif kind != "redis":
            found({"nats": "nats-server"}.get(kind, kind))
    except ServerMissing as error:
        return str(error)
    return ""


def version(kind: str) -> str:
    """Return name and version of the package of such a server, as `nats-server 2.9.10-1`; empty for Valkey."""
    package = {"nats": "nats-server", "rabbitmq": "rabbitmq-server"}.get(kind, kind)
    archives = sorted((DEBIAN / "archives").glob(f"{package}_*.deb"))
    return " ".join(archives[-1].name.split("_")[:2]) if archives else ""


def found(program: str) -> str:
    """Return the path of a program that was unpacked."""
    for place in ("usr/bin", "usr/sbin"):
        if (path := DEBIAN / place / program).exists():
            return str(path)
    raise _missing(program)


def _erlang() -> Path:
    if not (path := DEBIAN / "usr/lib/erlang").exists():
        raise _missing("Erlang")
    return path


def _broker() -> Path:
    paths = sorted((DEBIAN / "usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))
    if not paths:
        raise _missing("rabbitmq-server")
    return paths[-1]


def _missing(program: str) -> ServerMissing:
    return ServerMissing(f"{program} is not installed (make bench-peers)")
