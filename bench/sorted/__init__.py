"""Benchmarks of sorted topics."""
