-- Row: (group_id). Nothing is left of it but these notes.
DELETE FROM store_ids WHERE group_id = ?
