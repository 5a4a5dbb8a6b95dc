"""Dispatch: starts the messages that may start now, and settles them (acknowledge, retry, dead-letter) at their end."""
