-- Row: (rank, merged, reason, history, body, note, slot_id, id, state).
UPDATE store_members SET rank = ?, merged = ?, reason = ?, history = ?, body = ?, note = ?
WHERE slot_id = ? AND id = ? AND state = ?
