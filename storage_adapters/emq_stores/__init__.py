"""The stores that EMQ brings along. EMQ finds each by the scheme of its URL, through the entry points `emq.stores`."""
