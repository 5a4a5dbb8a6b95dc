-- Row: (slot_id, id, state, at_ms, due_ms, priority, body, reason).
INSERT INTO store_entries (slot_id, id, state, at_ms, due_ms, priority, body, reason, epoch)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0)
