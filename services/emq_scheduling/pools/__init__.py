"""What a pool may be, its file, its changes, and where pools are kept."""
