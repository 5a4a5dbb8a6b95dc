"""The coordination tree in the SQL database, which all hosts share anyway: for clusters without ZooKeeper."""

from emq.allocation.tree.database.client import DatabaseTree

__all__ = ["DatabaseTree"]
