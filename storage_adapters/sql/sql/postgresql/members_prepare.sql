-- Columns: token, slot_id, id: waiting members are prepared now.
UPDATE store_members AS m
SET state = 1, rank = r.token
FROM unnest(%s::float8[], %s::bigint[], %s::text[]) AS r (token, slot_id, id)
WHERE m.slot_id = r.slot_id AND m.id = r.id AND m.state = 0
