-- Row: (state, at_ms, due_ms, priority, body, reason, slot_id, id).
UPDATE store_entries SET state = ?, at_ms = ?, due_ms = ?, priority = ?, body = ?, reason = ?
WHERE slot_id = ? AND id = ?
