"""Benchmarks of resource scheduling."""
