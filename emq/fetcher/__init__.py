"""Fetching: loops that bring messages from the store into local buffers before the dispatcher needs them."""
