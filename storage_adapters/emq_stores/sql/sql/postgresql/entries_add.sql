-- Columns: slot_id, id, state, at_ms, due_ms, priority, body, reason.
INSERT INTO store_entries (slot_id, id, state, at_ms, due_ms, priority, body, reason, epoch)
SELECT r.*, 0
FROM unnest(%s::bigint[], %s::text[], %s::int[], %s::bigint[], %s::bigint[], %s::int[], %s::bytea[], %s::text[]) AS r
