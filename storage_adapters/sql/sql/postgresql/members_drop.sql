-- Columns: slot_id, id, state.
DELETE FROM store_members AS m
USING unnest(%s::bigint[], %s::text[], %s::int[]) AS r (slot_id, id, state)
WHERE m.slot_id = r.slot_id AND m.id = r.id AND m.state = r.state
