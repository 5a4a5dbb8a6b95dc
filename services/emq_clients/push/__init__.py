"""The operations of the push service: their requests, their results, and the clients."""
