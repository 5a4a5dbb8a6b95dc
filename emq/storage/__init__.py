"""Stores: the protocols that a store implements, the records that they exchange, and opening a store by its URL.

A *store* holds the messages, in Redis, in an SQL database or in memory. Start with `emq.storage.store`.
"""
