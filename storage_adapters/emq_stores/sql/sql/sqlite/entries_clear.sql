-- Row: (slot_id). Nothing is left of it but these notes.
DELETE FROM store_entries WHERE slot_id = ?
