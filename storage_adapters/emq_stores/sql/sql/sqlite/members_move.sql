-- Row: (new state, rank, merged, reason, history, slot_id, id, old state).
UPDATE store_members SET state = ?, rank = ?, merged = ?, reason = ?, history = ?
WHERE slot_id = ? AND id = ? AND state = ?
