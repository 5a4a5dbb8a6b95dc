"""A Redis master with its replica, and the sentinels that watch them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from emq_servers.redis import find_redis
from emq_servers.server import LOOPBACK, Started
from support.redis_servers.node import RedisNode, await_true

MASTER_NAME = "emq"
SENTINELS = 3
DOWN_AFTER_MS = 500
"""Milliseconds of silence after which a sentinel takes the master for dead."""


class RedisSentinel(RedisNode):
    """One sentinel. Its file names the master to watch, and how many sentinels must agree that the master is dead."""

    name = "sentinel"

    def __init__(self, program: str, master: RedisNode) -> None:
        super().__init__(program, None, None, ())
        self._file = self.directory / "sentinel.conf"
        self._file.write_text(
            f"port {self.port}\nbind {LOOPBACK}\ndir {self.directory}\n"
            f"sentinel monitor {MASTER_NAME} {LOOPBACK} {master.port} {SENTINELS // 2 + 1}\n"
            f"sentinel down-after-milliseconds {MASTER_NAME} {DOWN_AFTER_MS}\n"
            f"sentinel failover-timeout {MASTER_NAME} 3000\n"
        )

    def _command(self) -> list[str]:
        prefix = super()._command()
        return [*prefix[: prefix.index(self._program) + 1], str(self._file), "--sentinel"]


class RedisSentinels(Started):
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

    def await_well(self) -> None:
        """Wait until the master has a replica and all sentinels know each other; raise `ServerFailed` otherwise."""
        await_true(self._well, "master, replica and sentinels have not found each other")

    def close(self) -> None:
        """Stop all sentinels and nodes. Safe to repeat."""
        for server in (*self.sentinels, *self.nodes):
            server.close()

    def _well(self) -> bool:
        for sentinel in self.sentinels:
            flat = sentinel.ask("SENTINEL", "MASTER", MASTER_NAME)
            told = dict(zip(flat[::2], flat[1::2], strict=True))
            others = len(self.sentinels) - 1
            if told["flags"] != "master" or told["num-slaves"] == "0" or int(told["num-other-sentinels"]) < others:
                return False
        return self.master().has_replica()


def start_redis_sentinels(*, extra_args: Sequence[str] = ()) -> RedisSentinels:
    """Start a master, its replica and three sentinels on free ports of 127.0.0.1, and wait until they know each other.

    Args:
        extra_args: more of the master's and the replica's own options.

    Raises:
        ServerMissing, ServerFailed: as for `start_redis`.
    """
    program = find_redis()
    options = ("--save", "", "--io-threads", "1", "--repl-diskless-sync-delay", "0", *extra_args)
    with contextlib.ExitStack() as unless_whole:
        master = unless_whole.enter_context(RedisNode(program, None, None, options).started())
        following = (*options, "--replicaof", LOOPBACK, str(master.port))
        replica = unless_whole.enter_context(RedisNode(program, None, None, following).started())
        watching = [unless_whole.enter_context(RedisSentinel(program, master).started()) for _ in range(SENTINELS)]
        whole = RedisSentinels([master, replica], watching)
        whole.await_well()
        unless_whole.pop_all()
    return whole
