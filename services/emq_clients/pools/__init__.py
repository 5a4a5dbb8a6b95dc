"""The operations of pools: as requests, what they return, and the clients that have them."""
