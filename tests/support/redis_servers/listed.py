"""Redis servers that know nothing of each other, as one store."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from emq_servers.redis import find_redis
from emq_servers.server import Started
from support.redis_servers.node import RedisNode


class ListedServers(Started):
    """Servers of one list; a context manager.

    Attributes:
        nodes: the servers, in the order in which they were started.
    """

    def __init__(self, nodes: Sequence[RedisNode], options: Sequence[str]) -> None:
        self.nodes = list(nodes)
        self._options = options

    @property
    def url(self) -> str:
        return self.url_of(self.nodes)

    @staticmethod
    def url_of(nodes: Sequence[RedisNode]) -> str:
        return "redis+servers://" + ",".join(node.address for node in nodes)

    def at(self, address: str) -> RedisNode:
        """Return the server with this address."""
        return next(node for node in self.nodes if node.address == address)

    def add(self) -> RedisNode:
        """Start one more server; the store has it once its ranges are spread over it."""
        node = RedisNode(find_redis(), None, None, self._options).started()
        self.nodes.append(node)
        return node

    def close(self) -> None:
        """Stop all servers. Safe to repeat."""
        for node in self.nodes:
            node.close()


def start_listed(count: int = 2, *, appendonly: bool = False) -> ListedServers:
    """Start servers on free ports of 127.0.0.1; raises `ServerMissing` and `ServerFailed` like `start_redis`."""
    options = ("--save", "", "--appendonly", "yes" if appendonly else "no", "--io-threads", "1")
    with contextlib.ExitStack() as unless_whole:
        listed = ListedServers((), options)
        unless_whole.callback(listed.close)
        for _ in range(count):
            listed.add()
        unless_whole.pop_all()
    return listed
