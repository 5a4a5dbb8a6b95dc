"""Planning: which host gets which groups. Pure functions; no I/O."""
