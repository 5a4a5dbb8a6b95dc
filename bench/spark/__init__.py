"""Benchmarks of the Spark tools: audit, load generator, data source."""
