"""Quotas: how many messages a group may start, second by second."""
