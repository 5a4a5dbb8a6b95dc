"""Tools for the loops of a host: restarts after a fault, slices of long work, slow calls put aside, the lease."""
