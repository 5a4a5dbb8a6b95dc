-- Columns: slot_id, id, state.
-- The inner SELECTs hide the number of rows, and `+ 0` hides the other index, so PostgreSQL finds rows by their key.
DELETE FROM store_members AS m
USING unnest((SELECT %s::bigint[]), (SELECT %s::text[]), (SELECT %s::int[])) AS r (slot_id, id, state)
WHERE m.slot_id = r.slot_id AND m.id = r.id AND m.state + 0 = r.state
