-- Columns: slot_id, id.
DELETE FROM store_rests AS m
USING unnest((SELECT %s::bigint[]), (SELECT %s::text[])) AS r (slot_id, id)
WHERE m.slot_id = r.slot_id AND m.id = r.id
