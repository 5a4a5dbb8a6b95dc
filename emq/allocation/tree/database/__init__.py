"""A coordination tree in the SQL database that hosts share anyway, for those without a ZooKeeper ensemble."""

from emq.allocation.tree.database.client import DatabaseTree

__all__ = ["DatabaseTree"]
