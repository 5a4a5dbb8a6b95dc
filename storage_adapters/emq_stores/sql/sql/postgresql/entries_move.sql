-- Columns: state, at_ms, due_ms, priority, body, reason, slot_id, id.
UPDATE store_entries AS e
SET state = r.state, at_ms = r.at_ms, due_ms = r.due_ms, priority = r.priority, body = r.body, reason = r.reason
FROM unnest(%s::int[], %s::bigint[], %s::bigint[], %s::int[], %s::bytea[], %s::text[], %s::bigint[], %s::text[])
    AS r (state, at_ms, due_ms, priority, body, reason, slot_id, id)
WHERE e.slot_id = r.slot_id AND e.id = r.id
