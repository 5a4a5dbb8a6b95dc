"""Quotas: count how many messages a group may start in each second."""
