"""The operations of the push service: as requests, what they return, and the clients that have them."""
