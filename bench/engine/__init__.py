"""Benchmarks of one host and its producer."""
