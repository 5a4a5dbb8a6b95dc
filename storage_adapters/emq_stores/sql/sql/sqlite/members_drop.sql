-- Row: (slot_id, id, state).
DELETE FROM store_members WHERE slot_id = ? AND id = ? AND state = ?
