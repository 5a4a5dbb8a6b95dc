"""The stage, the figures and the backlog that all benchmarks use."""
