"""The trial: a cluster of its own, a load, a crash, and the audit of it."""
