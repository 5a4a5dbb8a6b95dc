"""A coordination tree in the SQL database that hosts share anyway, for those without a ZooKeeper ensemble."""

from emq.allocation.database_tree.tree import DatabaseTree

__all__ = ["DatabaseTree"]
