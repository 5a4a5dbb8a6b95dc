"""A Redis master with its replica, and the sentinels that watch them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from emq_servers.redis import find_redis
from emq_servers.redis_node import RedisNode, all_or_none, await_true
from emq_servers.server import LOOPBACK, START_TIMEOUT_S

MASTER_NAME = "emq"
DOWN_AFTER_MS = 500
"""Milliseconds of silence after which a sentinel takes the master for dead."""


class RedisSentinel(RedisNode):
    """One sentinel. Its file names the master to watch, and how many sentinels must agree that the master is dead."""

    name = "sentinel"

    def __init__(self, program: str, master: RedisNode, quorum: int) -> None:
        super().__init__(program, None, None, ())
        self._file = self.directory / "sentinel.conf"
        self._file.write_text(
            f"port {self.port}\nbind {LOOPBACK}\ndir {self.directory}\n"
            f"sentinel monitor {MASTER_NAME} {LOOPBACK} {master.port} {quorum}\n"
            f"sentinel down-after-milliseconds {MASTER_NAME} {DOWN_AFTER_MS}\n"
            f"sentinel failover-timeout {MASTER_NAME} 3000\n"
        )

    def _command(self) -> list[str]:
        prefix = super()._command()
        return [*prefix[: prefix.index(self._program) + 1], str(self._file), "--sentinel"]


class RedisSentinels:
    """A master, its replica and their sentinels; a context manager.

    Attributes:
        nodes: first the node that began as master, then its replica. Roles change; ask `master`.
        sentinels: the sentinels, which decide which node is the master.
    """

    def __init__(self, nodes: Sequence[RedisNode], sentinels: Sequence[RedisSentinel]) -> None:
        self.nodes = list(nodes)
        self.sentinels = list(sentinels)

    @property
    def url(self) -> str:
        return "redis+sentinel://" + ",".join(s.address for s in self.sentinels) + f"/{MASTER_NAME}"

    def master(self) -> RedisNode:
        """Return the node that the first sentinel names as master now."""
        _, port = self.sentinels[0].ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER_NAME)
        return next(node for node in self.nodes if node.port == int(port))

    def await_well(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until the master has a replica and all sentinels know each other; raise `ServerFailed` otherwise."""
        await_true(self._well, "master, replica and sentinels have not found each other", timeout_s)

    def close(self) -> None:
        """Stop all sentinels and nodes. Safe to repeat."""
        for server in (*self.sentinels, *self.nodes):
            server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _well(self) -> bool:
        for sentinel in self.sentinels:
            flat = sentinel.ask("SENTINEL", "MASTER", MASTER_NAME)
            told = dict(zip(flat[::2], flat[1::2], strict=True))
            others = len(self.sentinels) - 1
            if told["flags"] != "master" or told["num-slaves"] == "0" or int(told["num-other-sentinels"]) < others:
                return False
        return self.master().has_replica()


def start_redis_sentinels(*, sentinels: int = 3, extra_args: Sequence[str] = ()) -> RedisSentinels:
    """Start a master, its replica and sentinels on free ports of 127.0.0.1, and wait until they know each other.

    Args:
        sentinels: number of sentinels; a majority of them decides.
        extra_args: more of the master's and the replica's own options.

    Raises:
        ServerMissing, ServerFailed: as for `start_redis`.
    """
    program = find_redis()
    options = ("--save", "", "--io-threads", "1", "--repl-diskless-sync-delay", "0", *extra_args)
    with all_or_none() as started:
        master = RedisNode(program, None, None, options).started()
        started.append(master)
        replica = RedisNode(program, None, None, (*options, "--replicaof", LOOPBACK, str(master.port))).started()
        started.append(replica)
        watching = []
        for _ in range(sentinels):
            watching.append(RedisSentinel(program, master, sentinels // 2 + 1).started())
            started.append(watching[-1])
        whole = RedisSentinels([master, replica], watching)
        whole.await_well()
        return whole
