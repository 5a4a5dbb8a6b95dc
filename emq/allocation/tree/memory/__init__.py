"""A ZooKeeper ensemble inside one process: for the embedded default, tests and simulations."""
