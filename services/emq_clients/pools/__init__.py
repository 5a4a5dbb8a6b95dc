"""The operations of pools: their requests, their results, and the clients."""
