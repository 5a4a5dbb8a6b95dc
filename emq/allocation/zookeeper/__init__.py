"""The coordination tree over a real ZooKeeper ensemble; the only place that knows kazoo, its client library."""

from __future__ import annotations

from emq.allocation.zookeeper.client import ZooKeeperTree
from emq.allocation.zookeeper.cluster_url import Address, parse
from emq.allocation.zookeeper.opening import tree_of

__all__ = ["Address", "ZooKeeperTree", "parse", "tree_of"]
