-- Columns: rank, merged, reason, history, body, note, slot_id, id, state.
-- The inner SELECTs hide the number of rows, and `+ 0` hides the other index, so PostgreSQL finds rows by their key.
UPDATE store_members AS m
SET rank = r.rank, merged = r.merged, reason = r.reason, history = r.history, body = r.body, note = r.note
FROM unnest(
    (SELECT %s::float8[]), (SELECT %s::bigint[]), (SELECT %s::text[]), (SELECT %s::text[]), (SELECT %s::bytea[]),
    (SELECT %s::bytea[]),
    (SELECT %s::bigint[]), (SELECT %s::text[]), (SELECT %s::int[])
) AS r (rank, merged, reason, history, body, note, slot_id, id, state)
WHERE m.slot_id = r.slot_id AND m.id = r.id AND m.state + 0 = r.state
