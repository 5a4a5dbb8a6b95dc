-- Columns: slot_id. Nothing is left of them but these notes.
DELETE FROM store_entries AS e USING unnest(%s::bigint[]) AS r (slot_id) WHERE e.slot_id = r.slot_id
