"""What is written down of tasks and pools, and the proof from it."""
