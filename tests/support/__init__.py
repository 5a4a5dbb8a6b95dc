"""Shared by tests: time that jumps, stores and databases that fail on demand, and hosts built from their parts."""
