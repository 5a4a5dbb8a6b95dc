"""The coordination tree: its protocol, in memory, and in the database. `allocation.zookeeper` has the third."""
