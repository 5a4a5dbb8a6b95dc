"""A ZooKeeper ensemble: several servers that keep one tree, and serve the tree while a majority of them runs."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Self

from emq_servers.server import LOOPBACK, Started, free_port
from emq_servers.zookeeper import Java, ZooKeeperServer


class Ensemble(Started):
    """ZooKeeper servers on 127.0.0.1 that belong together; a context manager.

    The ensemble serves while more than half of the members run. You may stop, kill or pause a member at
    any time; `restart` brings the member back.

    Attributes:
        servers: the members.
    """

    def __init__(self, servers: list[ZooKeeperServer]) -> None:
        self.servers = servers
        ports = _distinct_ports(2 * len(servers))
        members = {
            f"server.{number}": f"{LOOPBACK}:{ports.pop()}:{ports.pop()};{LOOPBACK}:{server.port}"
            for number, server in enumerate(servers, 1)
        }
        # The servers' ticks are short, so that sessions may be short. Limits among members, in ticks, may stay long.
        limits = {"initLimit": "40", "syncLimit": "10"}
        for number, server in enumerate(servers, 1):
            server.join_ensemble(number, {**limits, **members})

    @property
    def url(self) -> str:
        """The addresses of all members, running or not, for clients to connect to."""
        return "zookeeper://" + ",".join(f"{LOOPBACK}:{server.port}" for server in self.servers)

    @property
    def has_quorum(self) -> bool:
        return sum(server.running for server in self.servers) > len(self.servers) // 2

    def started(self) -> Self:
        """Start all members and return the ensemble; close everything again if a start fails."""
        try:
            self.restart(*range(len(self.servers)))
        except BaseException:
            self.close()
            raise
        return self

    def stop(self, *members: int) -> None:
        """End these members (0 for the first) in good order. Safe to repeat."""
        for member in members:
            self.servers[member].stop()

    def kill(self, *members: int) -> None:
        """End these members (0 for the first) at once. Safe to repeat."""
        for member in members:
            self.servers[member].kill()

    def restart(self, *members: int) -> None:
        """Start these members (0 for the first) again; return when they serve, or at once while there is no quorum.

        Raises:
            ServerFailed: a member did not start; the text has the end of its log.
        """
        for member in members:
            self.servers[member].launch()
        if self.has_quorum:
            for server in self.servers:
                if server.running:
                    server.await_ready()

    def close(self) -> None:
        """Stop all members and remove their temporary directories. Safe to repeat."""
        with contextlib.ExitStack() as stack:
            for server in self.servers:
                stack.callback(server.close)

    def wait(self) -> int:
        """Wait until all members have ended; return the first exit status that is not 0, else 0."""
        return next((status for status in [server.wait() for server in self.servers] if status), 0)


def start_ensemble(size: int = 3, *, directory: Path | None = None) -> Ensemble:
    """Start a ZooKeeper ensemble and wait until it serves.

    Args:
        size: number of servers, at least 2, best odd: with one server more, the ensemble survives no further loss.
        directory: gets one subdirectory for each member (`1`, `2`, ...). None: temporary ones, removed at the end.

    Raises:
        ServerMissing: there is no Java, or no package `pyspark`, which has ZooKeeper inside; install it.
        ServerFailed: a member did not start; the text has the end of its log.
    """
    java = Java()
    places = [directory / str(number) if directory else None for number in range(1, size + 1)]
    ports = _distinct_ports(size)
    return Ensemble([ZooKeeperServer(java, place, ports.pop()) for place in places]).started()


def _distinct_ports(count: int) -> list[int]:
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return list(ports)
