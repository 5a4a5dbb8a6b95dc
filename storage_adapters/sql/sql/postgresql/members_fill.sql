-- Columns: body, note, slot_id, id: of waiting members.
UPDATE store_members AS m
SET body = r.body, note = r.note
FROM unnest(%s::bytea[], %s::bytea[], %s::bigint[], %s::text[]) AS r (body, note, slot_id, id)
WHERE m.slot_id = r.slot_id AND m.id = r.id AND m.state = 0
