-- Columns: epoch, armed, armed_due_ms, id. The rows are locked.
UPDATE store_groups AS g
SET epoch = r.epoch, armed = r.armed, armed_due_ms = r.due_ms
FROM unnest(%s::bigint[], %s::text[], %s::bigint[], %s::bigint[]) AS r (epoch, armed, due_ms, id)
WHERE g.id = r.id
