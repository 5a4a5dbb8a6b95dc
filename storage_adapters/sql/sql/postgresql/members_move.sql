-- Columns: new state, rank, merged, reason, history, slot_id, id, old state.
UPDATE store_members AS m
SET state = r.state, rank = r.rank, merged = r.merged, reason = r.reason, history = r.history
FROM unnest(%s::int[], %s::float8[], %s::bigint[], %s::text[], %s::text[], %s::bigint[], %s::text[], %s::int[])
    AS r (state, rank, merged, reason, history, slot_id, id, origin)
WHERE m.slot_id = r.slot_id AND m.id = r.id AND m.state = r.origin
