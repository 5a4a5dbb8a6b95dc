-- Columns: slot_id, id, state, at_ms, due_ms, body, reason.
INSERT INTO store_entries (slot_id, id, state, at_ms, due_ms, body, reason, epoch)
SELECT r.*, 0
FROM unnest(%s::bigint[], %s::text[], %s::int[], %s::bigint[], %s::bigint[], %s::bytea[], %s::text[]) AS r
