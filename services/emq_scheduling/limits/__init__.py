"""Limits of resources: what counts as used, what fits, what is kept through a crash."""
