"""Records of tasks and pools, and the proof from them."""
