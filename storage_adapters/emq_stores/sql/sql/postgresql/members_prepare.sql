-- Columns: token, slot_id, id: waiting members are prepared now.
-- The inner SELECTs hide the number of rows, and `+ 0` hides the other index, so PostgreSQL finds rows by their key.
UPDATE store_members AS m
SET state = 1, rank = r.token
FROM unnest((SELECT %s::float8[]), (SELECT %s::bigint[]), (SELECT %s::text[])) AS r (token, slot_id, id)
WHERE m.slot_id = r.slot_id AND m.id = r.id AND m.state + 0 = 0
