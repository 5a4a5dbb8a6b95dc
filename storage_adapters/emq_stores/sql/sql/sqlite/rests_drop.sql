-- Row: (slot_id, id).
DELETE FROM store_rests WHERE slot_id = ? AND id = ?
