"""One program for each peer: it publishes, or works, as the peer's own documentation says. See `common`."""
