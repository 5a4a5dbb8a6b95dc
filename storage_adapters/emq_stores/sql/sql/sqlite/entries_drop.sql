-- Row: (slot_id, id).
DELETE FROM store_entries WHERE slot_id = ? AND id = ?
