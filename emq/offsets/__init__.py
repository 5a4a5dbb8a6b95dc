"""How far each queue has been consumed: tracked in memory, persisted as checkpoints."""
