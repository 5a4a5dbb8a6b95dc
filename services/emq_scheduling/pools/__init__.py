"""Pools: their rules, files, changes and catalog."""
