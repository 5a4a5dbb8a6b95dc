"""Monitoring of a host: metrics in the text format of Prometheus, and whether it lives and is ready.

`docs/metrics.md` lists every metric.
"""
