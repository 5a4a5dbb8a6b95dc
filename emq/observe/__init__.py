"""Tools for operators: administration, dead letters, recall, lag, planned messages."""
