"""The coordination tree over a real ZooKeeper ensemble; only this package imports kazoo, the client library.

Terms: an *ensemble* is the set of ZooKeeper servers that keep one tree. The *chroot* is the node below which everything
of a cluster lies. An *access list* (ACL) says who may read or change a node.
"""

from __future__ import annotations

from emq.allocation.zookeeper.client import ZooKeeperTree
from emq.allocation.zookeeper.cluster_url import Address, parse
from emq.allocation.zookeeper.opening import tree_of

__all__ = ["Address", "ZooKeeperTree", "parse", "tree_of"]
