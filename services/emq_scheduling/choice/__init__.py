"""Which waiting task starts next, and on which resource."""
