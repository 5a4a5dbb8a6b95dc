"""Chooses the waiting task that starts next, and its resource."""
