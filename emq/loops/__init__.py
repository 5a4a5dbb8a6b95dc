"""What every loop of a host uses: restarts after a fault, slices, calls put aside, the lease."""
