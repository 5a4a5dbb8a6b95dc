"""Stores that EMQ can use; each is found by the scheme of its URL through the entry points `emq.stores`."""
