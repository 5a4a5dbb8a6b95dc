"""Benchmarks: `python -m bench NAME [--store redis|sqlite|memory|postgres] [--json]`. Each starts its own servers."""
