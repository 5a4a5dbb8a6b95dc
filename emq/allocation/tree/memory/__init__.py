"""The coordination tree of a made-up ZooKeeper ensemble inside one process, for tests and simulations."""
