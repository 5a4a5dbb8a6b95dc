-- Row: (state, at_ms, due_ms, body, reason, slot_id, id).
UPDATE store_entries SET state = ?, at_ms = ?, due_ms = ?, body = ?, reason = ? WHERE slot_id = ? AND id = ?
