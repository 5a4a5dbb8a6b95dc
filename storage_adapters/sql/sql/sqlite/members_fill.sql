-- Row: (rank, merged, history, body, note, slot_id, id, state).
UPDATE store_members SET rank = ?, merged = ?, history = ?, body = ?, note = ?
WHERE slot_id = ? AND id = ? AND state = ?
