-- Row: (rank, merged, history, body, note, slot_id, id): of waiting members.
UPDATE store_members SET rank = ?, merged = ?, history = ?, body = ?, note = ?
WHERE slot_id = ? AND id = ? AND state = 0
