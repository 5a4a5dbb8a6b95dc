"""Allocation: which host consumes which groups."""
