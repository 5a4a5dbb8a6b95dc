"""A Redis cluster: each node is a process of its own, and plain CLUSTER commands set the cluster up."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Self

from emq_servers.redis import find_redis
from emq_servers.server import LOOPBACK, ServerFailed, Started, free_port
from support.redis_servers.node import RedisNode, await_true

HASH_SLOTS = 16_384

MASTERS = 3
"""The fewest that can elect a replica to take over."""

NODE_TIMEOUT_MS = 1_000
"""Milliseconds of silence after which a node counts as failing; a replica takes over within about twice the time."""

MIGRATE_KEYS = 100
MIGRATE_TIMEOUT_MS = 5_000


class ClusterNode(RedisNode):
    """One node of a cluster.

    Attributes:
        bus: the port at which the other nodes talk to this node.
    """

    def __init__(self, program: str, options: Sequence[str]) -> None:
        self.bus = free_port()
        enabled = ("--cluster-enabled", "yes", "--cluster-port", str(self.bus))
        super().__init__(program, None, None, (*enabled, *options))


class RedisCluster(Started):
    """Masters and replicas of one cluster; a context manager.

    Attributes:
        nodes: first the nodes that began as masters, then those that began as replicas. Roles change; ask `masters`.
    """

    def __init__(self, nodes: Sequence[ClusterNode]) -> None:
        self.nodes = list(nodes)

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(node.address for node in self.nodes)

    def masters(self) -> list[ClusterNode]:
        """Return the running nodes that serve hash slots now, in the order of `nodes`."""
        slots = self._asked("CLUSTER", "SLOTS")
        ports = {entry[2][1] for entry in slots}
        return [node for node in self.nodes if node.port in ports and node.running]

    def master_of(self, hash_slot: int) -> ClusterNode:
        """Return the node that serves a hash slot."""
        for entry in self._asked("CLUSTER", "SLOTS"):
            if entry[0] <= hash_slot <= entry[1]:
                return self._at(entry[2][1])
        raise ServerFailed(f"hash slot {hash_slot} is served by no node; wait until the cluster is well")

    def replica_of(self, master: ClusterNode) -> ClusterNode:
        """Return a replica of a master, one that the cluster lists now."""
        for entry in self._asked("CLUSTER", "SLOTS"):
            if entry[2][1] == master.port and len(entry) > 3:
                return self._at(entry[3][1])
        raise ServerFailed(f"{master.address} has no replica now; restart one and wait until the cluster is well")

    def move_slot(self, slot: int, source: ClusterNode, target: ClusterNode) -> None:
        """Move one hash slot with its keys, by the steps in Redis's documentation of CLUSTER SETSLOT."""
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.ask("CLUSTER", "MYID"))
        target_id = target.ask("CLUSTER", "MYID")
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
        while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, MIGRATE_KEYS):
            source.ask("MIGRATE", LOOPBACK, target.port, "", 0, MIGRATE_TIMEOUT_MS, "KEYS", *keys)
        # The target hears first: if the source goes down before it hears, the slot still has an owner.
        for node in (target, source, *(n for n in self.masters() if n not in (source, target))):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", target_id)

    def await_well(self) -> None:
        """Wait until all running nodes agree that every hash slot is served.

        Raises:
            ServerFailed: they did not agree within `START_TIMEOUT_S` seconds.
        """
        await_true(self._well, "the cluster is not well")

    def await_taken_over(self, lost: ClusterNode) -> None:
        """Wait until replicas serve the hash slots of a killed master; raise `ServerFailed` like `await_well`."""
        await_true(lambda: not self._serves(lost) and self._well(), f"nobody took {lost.address} over")

    def await_replicas(self) -> None:
        """Wait until a replica follows every master; raise `ServerFailed` like `await_well`."""
        await_true(lambda: all(node.has_replica() for node in self.masters()), "a master has no replica")

    def close(self) -> None:
        """Stop all nodes. Safe to repeat."""
        for node in self.nodes:
            node.close()

    def founded(self) -> Self:
        """Introduce the nodes to each other, deal the hash slots out, and wait until all of them are served."""
        first, masters = self.nodes[0], self.nodes[:MASTERS]
        for i, node in enumerate(self.nodes):
            # Each node gets its own epoch, or the nodes would first have to settle whose epoch is higher.
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
        for node in self.nodes[1:]:
            first.ask("CLUSTER", "MEET", LOOPBACK, node.port, node.bus)
        for i, node in enumerate(masters):
            start, end = i * HASH_SLOTS // len(masters), (i + 1) * HASH_SLOTS // len(masters)
            node.ask("CLUSTER", "ADDSLOTSRANGE", start, end - 1)
        await_true(lambda: all(map(self._has_met_all, self.nodes)), "the nodes have not met")
        for i, node in enumerate(self.nodes[len(masters) :]):
            node.ask("CLUSTER", "REPLICATE", masters[i % len(masters)].ask("CLUSTER", "MYID"))
        self.await_well()
        if len(self.nodes) > len(masters):
            self.await_replicas()
        return self

    def _has_met_all(self, node: ClusterNode) -> bool:
        """Return whether a node knows all others by their own names; until they have met, it gives them others."""
        known = node.ask("CLUSTER", "NODES")
        return len(known.splitlines()) == len(self.nodes) and "handshake" not in known

    def _well(self) -> bool:
        for node in self.nodes:
            if node.running:
                info = node.ask("CLUSTER", "INFO")
                if "cluster_state:ok" not in info or f"cluster_slots_ok:{HASH_SLOTS}" not in info:
                    return False
        return True

    def _serves(self, node: ClusterNode) -> bool:
        running = (other for other in self.nodes if other.running)
        return any(entry[2][1] == node.port for other in running for entry in other.ask("CLUSTER", "SLOTS"))

    def _asked(self, *words: object) -> Any:
        for node in self.nodes:
            if node.running:
                with contextlib.suppress(OSError):
                    return node.ask(*words)
        raise ServerFailed("no node of the cluster runs; restart one")

    def _at(self, port: int) -> ClusterNode:
        return next(node for node in self.nodes if node.port == port)


def start_redis_cluster(*, replicas: int = 1, appendonly: bool = False, extra_args: Sequence[str] = ()) -> RedisCluster:
    """Start a cluster of three masters on free ports of 127.0.0.1 and wait until it serves every hash slot.

    Args:
        replicas: number of replicas of each master.
        appendonly: as for `start_redis`.
        extra_args: more of each server's own options.

    Raises:
        ServerMissing, ServerFailed: as for `start_redis`.
    """
    program = find_redis()
    options = ("--save", "", "--appendonly", "yes" if appendonly else "no", "--io-threads", "1")
    quick = ("--cluster-node-timeout", str(NODE_TIMEOUT_MS), "--repl-diskless-sync-delay", "0")
    every = (*options, *quick, *extra_args)
    with contextlib.ExitStack() as unless_whole:
        nodes = [
            unless_whole.enter_context(ClusterNode(program, every).started()) for _ in range(MASTERS * (1 + replicas))
        ]
        cluster = RedisCluster(nodes).founded()
        unless_whole.pop_all()
    return cluster
