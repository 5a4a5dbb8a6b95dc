"""Fetching: bringing messages from the store into local buffers ahead of need, off the dispatch path."""
