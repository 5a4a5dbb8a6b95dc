"""A ZooKeeper ensemble: several servers that keep one tree, and serve it while a majority of them runs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from emq.servers.server import LOOPBACK, free_port
from emq.servers.zookeeper import NO_CONFIG, Java, ZooKeeperServer


class Ensemble:
    """ZooKeeper servers on 127.0.0.1 that belong together; a context manager.

    It serves while more than half of the members run. A member may be stopped, killed or paused (by its `pid`) at any
    time, and comes back with `restart`.

    Attributes:
        servers: its members.
    """

    def __init__(self, servers: list[ZooKeeperServer]) -> None:
        self.servers = servers
        ports = _distinct_ports(2 * len(servers))
        members = {
            f"server.{number}": f"{LOOPBACK}:{ports.pop()}:{ports.pop()};{LOOPBACK}:{server.port}"
            for number, server in enumerate(servers, 1)
        }
        # Ticks are short, so that sessions may be; the limits of the members among themselves need not be.
        limits = {"initLimit": "40", "syncLimit": "10"}
        for number, server in enumerate(servers, 1):
            server.join_ensemble(number, {**limits, **members})

    @property
    def url(self) -> str:
        """Where clients connect: all members, whether they run or not."""
        return "zookeeper://" + ",".join(f"{LOOPBACK}:{server.port}" for server in self.servers)

    @property
    def has_quorum(self) -> bool:
        return sum(server.running for server in self.servers) > len(self.servers) // 2

    def started(self) -> Self:
        """Start all members and return it; leaves nothing behind if that fails."""
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
        """Start these members (0 for the first) anew; returns when they serve, or at once while there is no quorum.

        Raises:
            ServerFailed: one did not start; the text has the end of its log.
        """
        for member in members:
            self.servers[member].launch()
        if self.has_quorum:
            for server in self.servers:
                if server.running:
                    server.await_ready()

    def close(self) -> None:
        """Stop all and remove their directories if those were temporary. Safe to repeat."""
        with contextlib.ExitStack() as stack:
            for server in self.servers:
                stack.callback(server.close)

    def wait(self) -> int:
        """Wait until all have ended; returns the first exit status that is not 0."""
        return next((status for status in [server.wait() for server in self.servers] if status), 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def start_ensemble(size: int = 3, *, directory: Path | None = None, config: Mapping[str, str] = NO_CONFIG) -> Ensemble:
    """Start a ZooKeeper ensemble and wait until it serves.

    Args:
        size: how many servers, from 2; an odd number makes sense.
        directory: gets one for each member (`1`, `2`, ...); None means temporary ones that are removed at the end.
        config: more lines of zoo.cfg, the same for all.

    Raises:
        ServerMissing: no Java, or no package `pyspark`, which carries ZooKeeper; install it.
        ServerFailed: a member did not start; the text has the end of its log.
    """
    java = Java()
    places = [directory / str(number) if directory else None for number in range(1, size + 1)]
    ports = _distinct_ports(size)
    return Ensemble([ZooKeeperServer(java, place, ports.pop(), config) for place in places]).started()


def _distinct_ports(count: int) -> list[int]:
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return list(ports)
