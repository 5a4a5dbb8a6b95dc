-- Columns: new state, rank, merged, reason, history, slot_id, id, old state.
-- The inner SELECTs hide the number of rows, and `+ 0` hides the other index, so PostgreSQL finds rows by their key.
UPDATE store_members AS m
SET state = r.state, rank = r.rank, merged = r.merged, reason = r.reason, history = r.history
FROM unnest(
    (SELECT %s::int[]), (SELECT %s::float8[]), (SELECT %s::bigint[]), (SELECT %s::text[]), (SELECT %s::text[]),
    (SELECT %s::bigint[]), (SELECT %s::text[]), (SELECT %s::int[])
) AS r (state, rank, merged, reason, history, slot_id, id, origin)
WHERE m.slot_id = r.slot_id AND m.id = r.id AND m.state + 0 = r.origin
