"""What a host tells those who watch it: metrics in the text format of Prometheus, and whether it lives and is ready.

`docs/metrics.md` lists every metric.
"""
