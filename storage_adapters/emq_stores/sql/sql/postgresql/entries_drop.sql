-- Columns: slot_id, id.
DELETE FROM store_entries AS e
USING unnest(%s::bigint[], %s::text[]) AS r (slot_id, id)
WHERE e.slot_id = r.slot_id AND e.id = r.id
