"""A made-up ZooKeeper ensemble inside one event loop, for simulations: deterministic, with faults on demand."""

from __future__ import annotations

from support.ensemble.client import MemoryTree
from support.ensemble.servers import MemoryServers

__all__ = ["MemoryEnsemble", "MemoryTree"]


class MemoryEnsemble(MemoryServers):
    """The servers, and a method that makes clients of them."""

    def tree(self, timeout_s: float = 10.0) -> MemoryTree:
        """Make a client that is not connected yet. Its session ends after `timeout_s` of silence."""
        return MemoryTree(self, timeout_s)
