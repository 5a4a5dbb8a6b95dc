"""Benchmarks of several hosts: allocation, moves of groups, several processes on one server."""
