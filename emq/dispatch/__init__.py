"""Dispatch: starts the messages that may start now, and settles them (acknowledge, retry, dead-letter) at their end.

A message is *in flight* from its start, when the handler gets the message, until it is settled in the store.
"""
