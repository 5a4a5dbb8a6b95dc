"""The progress of each queue: tracked in memory, and saved in the database as checkpoints."""
