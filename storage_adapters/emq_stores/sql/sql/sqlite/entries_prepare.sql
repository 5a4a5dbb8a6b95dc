-- Row: (claimed_ms, epoch, slot_id, id): a waiting entry is prepared now.
UPDATE store_entries SET state = 1, at_ms = ?, epoch = ? WHERE slot_id = ? AND id = ?
