"""A pool on the host that owns it."""
