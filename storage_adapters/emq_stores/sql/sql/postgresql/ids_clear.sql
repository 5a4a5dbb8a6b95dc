-- Columns: group_id. Nothing is left of them but these notes.
DELETE FROM store_ids AS e USING unnest(%s::bigint[]) AS r (group_id) WHERE e.group_id = r.group_id
