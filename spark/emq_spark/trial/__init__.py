"""The trial: it starts a cluster of its own, puts a load on it, kills a host, and audits the result."""
