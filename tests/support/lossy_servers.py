"""Servers that come back without the writes after a point in time, in each way in which that happens."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import emq_servers as servers
from emq_servers.redis import find_redis
from emq_servers.server import LOOPBACK
from support.redis_servers.cluster import start_redis_cluster
from support.redis_servers.node import RedisNode, await_true
from support.redis_servers.sentinel import start_redis_sentinels

_NODE = ("--save", "", "--io-threads", "1", "--repl-diskless-sync-delay", "0")


class Lossy(Protocol):
    """Attributes:
    url: of the store.
    """

    url: str

    def cut(self) -> None:
        """From now on, writes will be lost."""

    def crash(self) -> None:
        """Kill the server."""

    def back(self) -> None:
        """Serve the store again, as it was at the cut."""

    def close(self) -> None:
        """Stop all servers."""


def _lag(replica: RedisNode, master: RedisNode) -> None:
    """Let a replica fall behind: it loses its master and cannot connect again."""
    behind = "master_repl_offset"
    await_true(lambda: _told(replica, behind) == _told(master, behind), "the replica has not caught up")
    replica.ask("CONFIG", "SET", "masteruser", "nobody")
    replica.ask("CONFIG", "SET", "masterauth", "wrong")
    master.ask("CLIENT", "KILL", "TYPE", "replica")


def _told(node: RedisNode, field: str) -> str:
    lines = str(node.ask("INFO", "replication")).split("\r\n")
    return dict(line.split(":", 1) for line in lines if ":" in line)[field]


class AppendOnlyFile:
    """`appendfsync everysec`, and a machine that dies: the file ends where it was last written to the disk."""

    def __init__(self) -> None:
        self._server = servers.start_redis(appendonly=True)
        self.url = self._server.url
        self._size = 0

    def cut(self) -> None:
        self._size = os.path.getsize(self._file())

    def crash(self) -> None:
        self._server.kill()
        os.truncate(self._file(), self._size)

    def back(self) -> None:
        self._server.restart()

    def close(self) -> None:
        self._server.close()

    def _file(self) -> Path:
        return max(Path(self._server.directory).glob("appendonlydir/*.incr.aof"))


class PromotedByHand:
    """A replica that lagged is promoted with REPLICAOF NO ONE, and takes over the master's address."""

    def __init__(self) -> None:
        program = find_redis()
        self._master = RedisNode(program, None, None, _NODE).started()
        follows = ("--replicaof", LOOPBACK, str(self._master.port))
        self._replica = RedisNode(program, None, None, (*_NODE, *follows)).started()
        self._successor: RedisNode | None = None
        self.url = f"redis://{self._master.address}/0"
        await_true(self._master.has_replica, "the replica does not follow")

    def cut(self) -> None:
        _lag(self._replica, self._master)

    def crash(self) -> None:
        self._master.kill()

    def back(self) -> None:
        self._replica.ask("REPLICAOF", "NO", "ONE")
        # The address moves: a server there takes over all that the promoted one has.
        follows = ("--replicaof", LOOPBACK, str(self._replica.port))
        self._successor = RedisNode(find_redis(), None, self._master.port, (*_NODE, *follows)).started()
        await_true(lambda: _told(self._successor, "master_link_status") == "up", "it has not caught up")  # type: ignore[arg-type]
        self._successor.ask("REPLICAOF", "NO", "ONE")

    def close(self) -> None:
        for node in (self._master, self._replica, self._successor):
            if node is not None:
                node.close()


class PromotedBySentinel:
    """The sentinels promote a replica that lagged."""

    def __init__(self) -> None:
        self._servers = start_redis_sentinels()
        self._master = self._servers.master()
        self.url = self._servers.url

    def cut(self) -> None:
        [replica] = [node for node in self._servers.nodes if node is not self._master]
        _lag(replica, self._master)

    def crash(self) -> None:
        self._master.kill()

    def back(self) -> None:
        await_true(lambda: self._servers.master() is not self._master, "nobody was promoted")

    def close(self) -> None:
        self._servers.close()


class _ClusterNode:
    """A master of a cluster.

    Args:
        replicas: of each master.
    """

    def __init__(self, replicas: int) -> None:
        self._cluster = start_redis_cluster(replicas=replicas)
        self._node = self._cluster.masters()[0]
        self.url = self._cluster.url

    def crash(self) -> None:
        self._node.kill()

    def close(self) -> None:
        self._cluster.close()


class ClusterNodeRestarted(_ClusterNode):
    """It comes back empty, since it keeps nothing on its disk and has no replica."""

    def __init__(self) -> None:
        super().__init__(replicas=0)

    def cut(self) -> None: ...

    def back(self) -> None:
        self._node.restart()
        self._cluster.await_well()


class ClusterReplicaPromoted(_ClusterNode):
    """The cluster promotes its replica, which lagged."""

    def __init__(self) -> None:
        super().__init__(replicas=1)
        self._cluster.await_replicas()

    def cut(self) -> None:
        _lag(self._cluster.replica_of(self._node), self._node)

    def back(self) -> None:
        self._cluster.await_taken_over(self._node)


LOSSY: dict[str, Callable[[], Lossy]] = {
    "append-only file": AppendOnlyFile,
    "promoted by hand": PromotedByHand,
    "promoted by sentinel": PromotedBySentinel,
    "cluster node restarted": ClusterNodeRestarted,
    "cluster replica promoted": ClusterReplicaPromoted,
}
