-- Row: (slot_id, id, state, at_ms, due_ms, body, reason).
INSERT INTO store_entries (slot_id, id, state, at_ms, due_ms, body, reason, epoch) VALUES (?, ?, ?, ?, ?, ?, ?, 0)
